package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/client"
)

// A queue delivers each message at least once. Here one comes twice, one makes no sense, and
// one cannot be carried out now: none of them is a matter of the others.
func ExampleConsumer() {
	s, stop := memory() // elsewhere: client.Dial
	defer stop()
	receipts := func(_ context.Context, a *client.Attempt, m client.Message) error {
		switch string(m.Body) {
		case "?":
			return status.Error(codes.InvalidArgument, "no order")
		case "order 3":
			return client.NoEffect(errors.New("the mail server is closed"))
		}
		fmt.Println("sending a receipt for", string(m.Body)) // in earnest with a.DownstreamKey("mail")
		return nil
	}
	queue := client.Queue{Namespace: "default", Scope: "send-receipt", MaxAge: 12 * time.Hour, Ordered: true}
	consumer, err := client.NewConsumer(context.Background(), s, queue, receipts)
	if err != nil {
		log.Fatal(err) // client.ErrRetentionTooShort: it would forget what the queue still delivers
	}

	made := time.Now() // in earnest from the message
	batch := []client.Message{
		{ID: "1", Source: "orders", Time: made, Body: []byte("order 1")},
		{ID: "2", Source: "orders", Time: made, Body: []byte("?")},
		{ID: "1", Source: "orders", Time: made, Body: []byte("order 1")},
		{ID: "3", Source: "orders", Time: made, Body: []byte("order 3")},
	}
	for i, d := range consumer.Consume(context.Background(), batch) {
		fmt.Println(batch[i].ID, d.Action, d.Repeat, d.Err)
	}
	// Output:
	// sending a receipt for order 1
	// 1 ack false <nil>
	// 2 dead_letter false rpc error: code = InvalidArgument desc = no order
	// 1 ack true <nil>
	// 3 retry false the mail server is closed
}
