package client

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storetest"
)

// longMessage makes a message with a text, of a type whose name has n letters.
func longMessage(t *testing.T, n int, text string) *dynamicpb.Message {
	t.Helper()
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("long.proto"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: proto.String(strings.Repeat("M", n)),
			Field: []*descriptorpb.FieldDescriptorProto{{
				Name: proto.String("text"), Number: proto.Int32(1),
				Type:  descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
				Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := dynamicpb.NewMessage(file.Messages().Get(0))
	m.Set(m.Descriptor().Fields().Get(0), protoreflect.ValueOfString(text))
	return m
}

// What is left of an outcome that is too large fits into every namespace, and says how it
// ended.
func TestWithoutBodyFits(t *testing.T) {
	failure := func(code codes.Code) []byte {
		b, err := proto.Marshal(status.New(code, strings.Repeat("m", 5000)).Proto())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, test := range []struct {
		name     string
		outcome  *store.Outcome
		bodyType string
		code     codes.Code
	}{
		{"value", &store.Outcome{Body: make([]byte, 5000), BodyType: typeBytes}, typeBytes, codes.OK},
		{"longest type", encode(longMessage(t, 255, "x")), strings.Repeat("M", 255), codes.OK},
		{"type too long", encode(longMessage(t, 256, "x")), "", codes.OK},
		{"error", &store.Outcome{Status: failure(codes.NotFound)}, "", codes.NotFound},
		{"all", &store.Outcome{
			Status: failure(math.MaxUint32), BodyType: strings.Repeat("M", 255), Body: make([]byte, 5000),
			Header: []store.MetadataEntry{{Name: "n", Value: make([]byte, 5000)}},
		}, strings.Repeat("M", 255), math.MaxUint32},
	} {
		short := withoutBody(test.outcome)
		if short.Size() > store.MinOutcomeBytes || !short.BodyOmitted || short.BodyType != test.bodyType {
			t.Errorf("%s: %d bytes with type %q, omitted %v", test.name, short.Size(), short.BodyType, short.BodyOmitted)
		}
		if failure, err := failureOf(short); err != nil || status.Code(failure) != test.code {
			t.Errorf("%s: holds %v, %v; want code %v", test.name, failure, err, test.code)
		}
	}
	if o := encode(longMessage(t, 5000, "\xff")); o.Size() > store.MinOutcomeBytes || !o.BodyOmitted {
		t.Errorf("a value that cannot be encoded: %d bytes, omitted %v", o.Size(), o.BodyOmitted)
	}
}

// named is a message of any type that [Do] takes.
type named struct{ proto.Message }

// Case 32: also where outcomes are as small as they can be, none is too large to be known.
func TestDoInANamespaceForSmallOutcomes(t *testing.T) {
	s := storetest.NewMemory(store.SystemClock{})
	if _, err := s.CreateNamespace(t.Context(), store.Namespace{Name: "small", MaxOutcomeBytes: store.MinOutcomeBytes}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		value named
		err   error
		told  func(error) bool
	}{
		"value":    {named{longMessage(t, 2000, "charged")}, nil, func(err error) bool { return errors.Is(err, store.ErrOutcomeOmitted) }},
		"no value": {named{longMessage(t, 2000, "\xff")}, nil, func(err error) bool { return errors.Is(err, store.ErrOutcomeOmitted) }},
		"error":    {named{}, status.Error(codes.NotFound, strings.Repeat("m", 2000)), func(err error) bool { return status.Code(err) == codes.NotFound }},
	} {
		key, runs := store.Key{Namespace: "small", ID: name}, 0
		fn := func(context.Context, *Attempt) (named, error) {
			runs++
			return test.value, test.err
		}
		if got, err := Do(t.Context(), s, key, nil, fn); !errors.Is(err, test.err) || !got.Recorded {
			t.Errorf("%s: recorded %v, %v", name, got.Recorded, err)
		}
		if _, err := Do(t.Context(), s, key, nil, fn); !test.told(err) || runs != 1 {
			t.Errorf("%s: a repeat is told %v; ran %d times", name, err, runs)
		}
	}
}
