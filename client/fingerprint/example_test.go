package fingerprint_test

import (
	"fmt"
	"log"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/idemd/idemd/client/fingerprint"
	"github.com/idemd/idemd/store"
)

// A repeat says the same thing in other bytes; a request for another amount does not.
func Example() {
	charge := func(fields map[string]any) store.Fingerprint {
		m, err := structpb.NewStruct(fields)
		if err != nil {
			log.Fatal(err)
		}
		f, err := fingerprint.Message(m)
		if err != nil {
			log.Fatal(err)
		}
		return f
	}
	first := charge(map[string]any{"amount": 42, "currency": "EUR"})
	fmt.Println(first.Compare(charge(map[string]any{"currency": "EUR", "amount": 42})) == store.MatchEqual)
	fmt.Println(first.Compare(charge(map[string]any{"currency": "EUR", "amount": 43})) == store.MatchDifferent)
	// Output:
	// true
	// true
}

// A guard makes one Digester per method, when it is set up.
func ExampleNew() {
	request := func(name, file string) *structpb.Value {
		return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{name: structpb.NewStringValue(file)}})
	}
	d, err := fingerprint.New(request("", "").ProtoReflect().Descriptor(), "struct_value.fields.string_value")
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range []*structpb.Value{request("trace", "a"), request("trace", "b"), request("span", "a")} {
		f, err := d.Fingerprint(m)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.4x\n", f.Digest)
	}
	// Output:
	// 7f8b2e9a
	// 7f8b2e9a
	// 6b289762
}
