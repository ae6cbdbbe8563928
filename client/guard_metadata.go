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

// captured keeps what a handler sets as response metadata, as far as it is listed. Once the
// caller is gone it goes nowhere else, which is no error of the handler's.
type captured struct {
	grpc.ServerTransportStream
	context context.Context // for the handler
	caller  context.Context
	listed  []string

	mu              sync.Mutex
	header, trailer []store.MetadataEntry
}

// captureMetadata returns a context like acting for the handler of a caller, with its
// metadata captured.
func captureMetadata(caller, acting context.Context, listed []string, detached bool) *captured {
	c := &captured{ServerTransportStream: grpc.ServerTransportStreamFromContext(acting), context: acting, caller: caller, listed: listed}
	if c.ServerTransportStream != nil && (len(listed) > 0 || detached) {
		c.context = grpc.NewContextWithServerTransportStream(acting, c)
	}
	return c
}

// SetHeader implements [grpc.ServerTransportStream].
func (c *captured) SetHeader(md metadata.MD) error {
	return c.keepUnless(c.ServerTransportStream.SetHeader(md), &c.header, md)
}

// SendHeader implements [grpc.ServerTransportStream].
func (c *captured) SendHeader(md metadata.MD) error {
	return c.keepUnless(c.ServerTransportStream.SendHeader(md), &c.header, md)
}

// SetTrailer implements [grpc.ServerTransportStream].
func (c *captured) SetTrailer(md metadata.MD) error {
	return c.keepUnless(c.ServerTransportStream.SetTrailer(md), &c.trailer, md)
}

// keepUnless keeps what was set, unless that failed while there was somebody to get it.
func (c *captured) keepUnless(err error, list *[]store.MetadataEntry, md metadata.MD) error {
	if err != nil && c.caller.Err() == nil {
		return err
	}
	c.keep(list, md)
	return nil
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
