package main

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

// outboxTable is where watermill looks for the topic "outbox", as wide as it should be: what InitializeSchema would
// make has a SERIAL, which is used up after 2,147,483,647 events and then fails every payment, and room for 36
// characters of id.
const outboxTable = `CREATE TABLE IF NOT EXISTS watermill_outbox (
  "offset" BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  uuid TEXT NOT NULL,
  payload JSON,
  metadata JSON,
  acked BOOLEAN NOT NULL DEFAULT FALSE,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now()
)`

// outbox is how that table is written and read: one event at a time. Of a larger batch watermill deletes all events
// once one was published, also those that were not when the subscriber was closed or the broker was away for longer
// than the relay's patience: they are lost.
var outbox = watermillsql.PostgreSQLQueueSchema{SubscribeBatchSize: 1}

const outboxTopic = "outbox"

// announce puts an event into the outbox. It will be told if tx commits, and only then, under the id that it is stored with.
func announce(ctx context.Context, tx *sql.Tx, topic, id string, body []byte) error {
	rows, err := watermillsql.NewPublisher(watermillsql.TxFromStdSQL(tx), watermillsql.PublisherConfig{SchemaAdapter: outbox}, nil)
	if err != nil {
		return err
	}
	event := message.NewMessageWithContext(ctx, id, body) // the stored id, never watermill.NewUUID()
	event.Metadata.Set(headerTime, time.Now().UTC().Format(time.RFC3339Nano))
	return forwarder.NewPublisher(rows, forwarder.PublisherConfig{ForwarderTopic: outboxTopic}).Publish(topic, event)
}

// relay publishes what is in the outbox. One that dies after an event was published, and before its row was deleted,
// or whose deletion was not committed, leaves the row: the event is published again, under the same id.
type relay struct {
	db       *sql.DB
	to       message.Publisher
	patience time.Duration // with the broker, for an event
}

// run returns when ctx ends. Of several relays one works at a time, so events keep their order.
func (r relay) run(ctx context.Context) error {
	logger := watermill.NewSlogLogger(slog.Default())
	rows, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromStdSQL(r.db), watermillsql.SubscriberConfig{
		SchemaAdapter:  outbox,
		OffsetsAdapter: watermillsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		AckDeadline:    &r.patience,
		PollInterval:   100 * time.Millisecond,
	}, logger)
	if err != nil {
		return err
	}
	f, err := forwarder.NewForwarder(rows, r.to, logger, forwarder.Config{ForwarderTopic: outboxTopic})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}
