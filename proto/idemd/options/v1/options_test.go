package optionsv1_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	optionsv1 "github.com/idemd/idemd/proto/idemd/options/v1"
	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
)

// TestOptionOfAMethod reads the option as a guard does: from the descriptor of a service.
func TestOptionOfAMethod(t *testing.T) {
	var file descriptorpb.FileDescriptorProto
	if err := prototext.Unmarshal([]byte(`
		name: "pay.proto" package: "pay.v1" syntax: "proto3" dependency: "idemd/options/v1/options.proto"
		message_type { name: "Request" }
		service { name: "Pay"
			method { name: "Charge" input_type: ".pay.v1.Request" output_type: ".pay.v1.Request"
				options { [idemd.options.v1.idempotency] {
					required: true lease { seconds: 5 } lapse_policy: LAPSE_POLICY_HOLD no_effect_codes: "RESOURCE_EXHAUSTED"
					wait { seconds: 1 } fingerprint_exclude: ["trace.id", "sent_at"] key_field: "order_id" } } }
			method { name: "Ping" input_type: ".pay.v1.Request" output_type: ".pay.v1.Request" }
		}`), &file); err != nil {
		t.Fatal(err)
	}
	desc, err := protodesc.NewFile(&file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	methods := desc.Services().ByName("Pay").Methods()
	want := &optionsv1.Idempotency{
		Required: true, Lease: durationpb.New(5 * time.Second), LapsePolicy: optionsv1.LapsePolicy_LAPSE_POLICY_HOLD,
		NoEffectCodes: []string{"RESOURCE_EXHAUSTED"}, Wait: durationpb.New(time.Second),
		FingerprintExclude: []string{"trace.id", "sent_at"}, KeyField: "order_id",
	}
	got := proto.GetExtension(methods.ByName("Charge").Options(), optionsv1.E_Idempotency)
	if !proto.Equal(got.(*optionsv1.Idempotency), want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if proto.HasExtension(methods.ByName("Ping").Options(), optionsv1.E_Idempotency) {
		t.Error("a method without the option has it")
	}
}

// TestLapsePolicyIsThatOfTheAPI: two enums, so that this package stays light, one meaning.
func TestLapsePolicyIsThatOfTheAPI(t *testing.T) {
	if len(optionsv1.LapsePolicy_name) != len(idemdv1.LapsePolicy_name) {
		t.Errorf("%v and %v", optionsv1.LapsePolicy_name, idemdv1.LapsePolicy_name)
	}
	for number, name := range idemdv1.LapsePolicy_name {
		if optionsv1.LapsePolicy_name[number] != name {
			t.Errorf("%d is %s in the API, and %s here", number, name, optionsv1.LapsePolicy_name[number])
		}
	}
}

// TestReachesOnlyProtobuf: a service's .proto that uses the option takes nothing else along.
func TestReachesOnlyProtobuf(t *testing.T) {
	const format = "{{if not .Standard}}{{.ImportPath}}{{end}}"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", format, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 2 {
		t.Fatalf("the list of dependencies is not one: %s", out)
	}
	for _, dep := range deps {
		if dep != "github.com/idemd/idemd/proto/idemd/options/v1" && !strings.HasPrefix(dep, "google.golang.org/protobuf/") {
			t.Errorf("package optionsv1 reaches %s", dep)
		}
	}
}
