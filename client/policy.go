package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/idemd/idemd/client/fingerprint"
	optionsv1 "github.com/idemd/idemd/proto/idemd/options/v1"
	"github.com/idemd/idemd/store"
)

// Policy says how a method is guarded. The zero Policy guards the calls that carry a key.
//
// A service author declares it in the .proto with the option idemd.options.v1.idempotency,
// or whoever runs the server gives it with [Method], which wins. What only code can say
// (FailOpen, Detach, Recover) has no place in the .proto.
type Policy struct {
	// Required refuses calls without a key. Without it they act unguarded, and are counted.
	Required bool
	// Lease, Hold and Wait are as the options of [Do] of these names. With Hold, a caller
	// whose deadline ends a handler leaves a key that needs a person, unless Detach is set.
	Lease time.Duration
	Hold  bool
	Wait  time.Duration
	// NoEffect lists the codes with which this method says that nothing happened. By
	// default there are none: a code proves nothing, and the key lapses as unknown.
	NoEffect []codes.Code
	// FingerprintExclude lists request fields that may differ between repeats, such as
	// "trace.id". The field that holds the key is always left out.
	FingerprintExclude []string
	// KeyField is the request field, a string, that holds the key if the call's metadata
	// has none. The default is request_id, if there is one (AIP-155).
	KeyField string
	// FailOpen lets a call act unguarded if idemd, or the key's home region, does not answer: it
	// cannot be reached, or was asked and has said nothing for half a second and half of the
	// caller's time. One that refuses, for whatever reason, or that only answers too late for this
	// caller's deadline, opens nothing. Nor does a key of which this process knows itself: it acts
	// under it, or has the outcome and could not record it yet, which answers the call then. The
	// default is to refuse the call: UNAVAILABLE.
	FailOpen bool
	// Detach lets a handler that has begun go on when its caller goes away or its deadline
	// passes: what it does is recorded, and repeats wait for it or get it. Its context ends
	// only with the lease. Without it an impatient caller ends each attempt midway.
	Detach bool
	// Recover finds out what an earlier attempt did before the handler runs; see [RecoverCall].
	// A policy given with [Method] replaces the declared one as a whole: [RecoverMethod] adds
	// the hook to what the .proto declares.
	Recover RecoverHook
}

// A method is a gRPC method and how it is guarded.
type method struct {
	name     string // with its leading slash
	policy   Policy
	declared bool // guarded or not, somebody has said so
	guarded  bool
	wrong    error // why it cannot be served although it is guarded

	descriptor protoreflect.MethodDescriptor // nil if it is not known
	keyField   protoreflect.FieldDescriptor  // nil if there is none
	print      *fingerprint.Digester
}

// keyIn returns the key that a request holds; empty if there is none.
func (m *method) keyIn(request any) string {
	message, ok := request.(proto.Message)
	if !ok || m.keyField == nil || message.ProtoReflect().Descriptor() != m.keyField.ContainingMessage() {
		return ""
	}
	return message.ProtoReflect().Get(m.keyField).String()
}

// newMethod finds out how a method is guarded. The error is one of set-up.
func newMethod(name string, o *guardOptions) (*method, error) {
	m := &method{name: name, descriptor: describe(name)}
	var err error
	switch policy, given := o.methods[name]; {
	case o.unguarded[name]:
		m.declared = true
	case given:
		m.policy, m.declared, m.guarded = policy, true, true
		if m.hasNoSideEffects() {
			err = errNoSideEffects
		}
	default:
		err = m.declaredInProto()
	}
	if err == nil {
		err = m.addRecover(o)
	}
	if err == nil && m.guarded {
		err = m.prepare()
	}
	if err != nil {
		return m, fmt.Errorf("method %s: %w", name, err)
	}
	return m, nil
}

// describe returns the descriptor of a method that generated code has registered.
func describe(name string) protoreflect.MethodDescriptor {
	service, methodName, ok := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	if !ok {
		return nil
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil
	}
	return sd.Methods().ByName(protoreflect.Name(methodName))
}

// declaredInProto reads the options of the method.
func (m *method) declaredInProto() error {
	options := m.options()
	declared, _ := proto.GetExtension(options, optionsv1.E_Idempotency).(*optionsv1.Idempotency)
	m.declared = declared != nil || m.hasNoSideEffects()
	switch {
	case declared == nil:
		return nil
	case declared.GetUnguarded():
		return checkUnguarded(declared)
	case m.hasNoSideEffects():
		return errNoSideEffects
	}
	m.guarded = true
	var err error
	m.policy, err = policyFromProto(declared)
	return err
}

// options returns the method's options; nil if there are none.
func (m *method) options() *descriptorpb.MethodOptions {
	if m.descriptor == nil {
		return nil
	}
	options, _ := m.descriptor.Options().(*descriptorpb.MethodOptions)
	return options
}

func (m *method) hasNoSideEffects() bool {
	return m.options().GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
}

var errNoSideEffects = errors.New("it is declared as guarded and as idempotency_level = NO_SIDE_EFFECTS, which is never guarded; take one of them away")

// checkUnguarded refuses an option that says how a method is guarded, and that it is not.
func checkUnguarded(o *optionsv1.Idempotency) error {
	if proto.Equal(o, &optionsv1.Idempotency{Unguarded: true}) {
		return nil
	}
	return errors.New("its option says that it is unguarded, and sets more than that; take one of them away")
}

func policyFromProto(o *optionsv1.Idempotency) (Policy, error) {
	if _, known := optionsv1.LapsePolicy_name[int32(o.GetLapsePolicy())]; !known {
		return Policy{}, fmt.Errorf("lapse_policy %d is not one that this guard knows", o.GetLapsePolicy())
	}
	noEffect, err := codesOf(o.GetNoEffectCodes())
	return Policy{
		Required:           o.GetRequired(),
		Lease:              o.GetLease().AsDuration(),
		Hold:               o.GetLapsePolicy() == optionsv1.LapsePolicy_LAPSE_POLICY_HOLD,
		Wait:               o.GetWait().AsDuration(),
		NoEffect:           noEffect,
		FingerprintExclude: o.GetFingerprintExclude(),
		KeyField:           o.GetKeyField(),
	}, err
}

// codesOf reads the canonical names of codes, such as UNAVAILABLE.
func codesOf(names []string) ([]codes.Code, error) {
	var list []codes.Code
	for _, name := range names {
		var code codes.Code
		if err := code.UnmarshalJSON([]byte(`"` + name + `"`)); err != nil {
			return nil, fmt.Errorf("no_effect_codes: %q is not the name of a gRPC code, such as UNAVAILABLE", name)
		}
		list = append(list, code)
	}
	return list, nil
}

// prepare checks the policy, and makes ready what each call needs.
func (m *method) prepare() error {
	if m.descriptor == nil {
		return fmt.Errorf("it cannot be guarded: no generated protobuf code for it is linked in")
	}
	if m.descriptor.IsStreamingClient() || m.descriptor.IsStreamingServer() {
		return fmt.Errorf("a streaming method cannot be guarded; make it unary, or declare it unguarded and guard what it does with Do")
	}
	if slices.Contains(m.policy.NoEffect, codes.OK) {
		return fmt.Errorf("OK cannot mean that nothing happened")
	}
	if err := m.policy.Recover.check(m.descriptor); err != nil {
		return err
	}
	probe := store.ClaimRequest{Key: store.Key{Namespace: store.DefaultNamespace, ID: "x"}, AttemptID: "x", Lease: m.policy.Lease, Wait: m.policy.Wait}
	if err := probe.Validate(); err != nil {
		return err
	}
	exclude := slices.Clone(m.policy.FingerprintExclude)
	field, err := keyField(m.descriptor.Input(), m.policy.KeyField)
	if err != nil {
		return err
	}
	if field != nil {
		m.keyField = field
		exclude = append(exclude, string(field.Name()))
	}
	m.print, err = fingerprint.New(m.descriptor.Input(), exclude...)
	return err
}

// keyField returns the field of a request that may hold the key; nil if there is none.
func keyField(request protoreflect.MessageDescriptor, name string) (protoreflect.FieldDescriptor, error) {
	const byConvention = "request_id"
	asked := name != ""
	if !asked {
		name = byConvention
	}
	field := request.Fields().ByName(protoreflect.Name(name))
	if field != nil && field.Kind() == protoreflect.StringKind && !field.IsList() {
		return field, nil
	}
	if asked {
		return nil, fmt.Errorf("the key field %q is not a string field of %s", name, request.FullName())
	}
	return nil, nil
}
