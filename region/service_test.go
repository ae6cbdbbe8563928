package region

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// Whatever is asked of a region, it is asked by another region, with the principal that the
// topology gives it and the store that is known. Only a ping is answered to another store.
func TestEveryMethodChecksWhoAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, `"*": fixed us`, "eu", "us")
		w.prepare = func(s *site, c *Config) {
			place := c.Topology.Regions["us"]
			place.Principal = "spiffe://example.org/idemd/us"
			c.Topology.Regions["us"] = place
			c.Caller = func(ctx context.Context) string {
				for _, who := range metadata.ValueFromIncomingContext(ctx, "who") {
					return who
				}
				return ""
			}
		}
		w.startAll()
		us := w.us().region.member().StoreID
		methods := pb.File_idemd_v1_peer_proto.Services().ByName("PeerService").Methods()
		for i := range methods.Len() {
			name := methods.Get(i).Name()
			for _, asks := range []struct {
				from, storeID, who string
				refused            error
				says               string
			}{
				{"eu", us, "", store.ErrWrongRegion, `the asking server says that it is region "eu" too`},
				{"", us, "", store.ErrWrongRegion, `does not name the asking region, ""`},
				{"ap", us, "", store.ErrWrongRegion, `does not name the asking region, "ap"`},
				{"us", us, "spiffe://example.org/anybody", store.ErrPermissionDenied, `spiffe://example.org/anybody is not the principal of region "us"`},
				{"us", store.NewStoreID(), "spiffe://example.org/idemd/us", store.ErrUnavailable, `does not believe who asks as region "us"`},
				{"us", "", "", store.ErrUnavailable, `does not believe who asks as region "us"`},
			} {
				err := w.asks(methods.Get(i), asks.who, map[protoreflect.Name]string{"region": "eu", "from_region": asks.from, "from_store_id": asks.storeID})
				if name == "Ping" && errors.Is(asks.refused, store.ErrUnavailable) {
					if err != nil {
						t.Errorf("Ping: %v", err)
					}
					continue
				}
				t.Log(name)
				refuses(t, err, asks.refused, asks.says)
			}
			err := w.asks(methods.Get(i), "", map[protoreflect.Name]string{"region": "us", "from_region": "us", "from_store_id": us})
			refuses(t, err, store.ErrWrongRegion, `this is region "eu", and region "us" is meant`)
		}
		w.stop()
	})
}

// asks asks region eu.
func (w *world) asks(method protoreflect.MethodDescriptor, who string, fields map[protoreflect.Name]string) error {
	w.Helper()
	l, err := w.us().region.peers["eu"].newLink()
	if err != nil {
		w.Fatal(err)
	}
	defer l.conn.Close()
	if method.IsStreamingClient() || method.IsStreamingServer() {
		w.Fatalf("%s streams, which this test cannot ask", method.Name())
	}
	request, response := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	for name, value := range fields {
		field := method.Input().Fields().ByName(name)
		if field == nil {
			w.Errorf("%s has no field %s", method.Name(), name)
			continue
		}
		request.Set(field, protoreflect.ValueOfString(value))
	}
	ctx := metadata.AppendToOutgoingContext(w.Context(), "who", who)
	path := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	return storepb.FromStatus(l.conn.Invoke(ctx, path, request, response))
}
