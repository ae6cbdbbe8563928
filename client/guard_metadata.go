package client

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/idemd/idemd/store"
)

// captured keeps what a handler sets as response metadata, as far as it is listed.
type captured struct {
	grpc.ServerTransportStream
	context context.Context // for the handler
	listed  []string

	mu              sync.Mutex
	header, trailer []store.MetadataEntry
}

// captureMetadata returns a context for the handler whose metadata is captured.
func captureMetadata(ctx context.Context, listed []string) *captured {
	c := &captured{ServerTransportStream: grpc.ServerTransportStreamFromContext(ctx), context: ctx, listed: listed}
	if c.ServerTransportStream != nil && len(listed) > 0 {
		c.context = grpc.NewContextWithServerTransportStream(ctx, c)
	}
	return c
}

// SetHeader implements [grpc.ServerTransportStream].
func (c *captured) SetHeader(md metadata.MD) error {
	err := c.ServerTransportStream.SetHeader(md)
	if err == nil {
		c.keep(&c.header, md)
	}
	return err
}

// SendHeader implements [grpc.ServerTransportStream].
func (c *captured) SendHeader(md metadata.MD) error {
	err := c.ServerTransportStream.SendHeader(md)
	if err == nil {
		c.keep(&c.header, md)
	}
	return err
}

// SetTrailer implements [grpc.ServerTransportStream].
func (c *captured) SetTrailer(md metadata.MD) error {
	err := c.ServerTransportStream.SetTrailer(md)
	if err == nil {
		c.keep(&c.trailer, md)
	}
	return err
}

func (c *captured) keep(list *[]store.MetadataEntry, md metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.listed {
		for _, value := range md.Get(name) {
			*list = append(*list, store.MetadataEntry{Name: name, Value: []byte(value)})
		}
	}
}

// addTo puts what was captured into an outcome, if there is one. What is more than can be
// stored is left out: that the call was carried out must be stored.
func (c *captured) addTo(o *store.Outcome) {
	if o == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o.Header, o.Trailer = storable(c.header), storable(c.trailer)
}

func storable(list []store.MetadataEntry) []store.MetadataEntry {
	return slices.Clone(list[:min(len(list), store.MaxMetadataEntries)])
}

// metadataOf returns what can be sent of stored metadata: gRPC does not check trailers, and a
// wrong one breaks the response. This guard stores none that was not sent before.
func metadataOf(list []store.MetadataEntry) metadata.MD {
	md := metadata.MD{}
	for _, entry := range list {
		if sendable(entry) {
			md.Append(entry.Name, string(entry.Value))
		}
	}
	return md
}

func sendable(entry store.MetadataEntry) bool {
	const nameChars = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	isName := strings.Trim(entry.Name, nameChars) == ""
	isText := !bytes.ContainsFunc(entry.Value, func(r rune) bool { return r < ' ' || r > '~' })
	return isName && (isText || strings.HasSuffix(entry.Name, "-bin"))
}
