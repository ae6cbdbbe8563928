package main

// Temporary: keeps go.mod whole until every package exists.
import (
	_ "github.com/alecthomas/kong"
	_ "github.com/anishathalye/porcupine"
	_ "github.com/cockroachdb/pebble/v2"
	_ "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "go.uber.org/goleak"
	_ "google.golang.org/grpc"
	_ "google.golang.org/protobuf/proto"
	_ "pgregory.net/rapid"
)

func main() {}
