package fingerprint

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/apipb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/typepb"
)

func BenchmarkFingerprint(b *testing.B) {
	small := &typepb.Field{Number: 1, Name: "amount", TypeUrl: "example.com/Money", JsonName: "amount", Packed: true}
	inAny, err := anypb.New(small)
	if err != nil {
		b.Fatal(err)
	}
	entries, err := structpb.NewStruct(map[string]any{"a": 1, "b": "two", "c": true, "d": nil, "e": 5})
	if err != nil {
		b.Fatal(err)
	}
	for _, bb := range []struct {
		name string
		m    proto.Message
	}{
		{"5 fields", small},
		{"list of 10 messages", &apipb.Api{Name: "n", Methods: []*apipb.Method{
			{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}, {Name: "e"}, {Name: "f"}, {Name: "g"}, {Name: "h"}, {Name: "i"}, {Name: "j"}}}},
		{"map of 5 messages", entries},
		{"5 fields in an Any", inAny},
		{"1 MiB", &apipb.Api{Name: string(make([]byte, 1<<20))}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			d, err := New(bb.m.ProtoReflect().Descriptor())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Fingerprint(bb.m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
