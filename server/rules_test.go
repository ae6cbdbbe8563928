package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// servedMethods are the full names of all methods of a server, and whether they stream.
func servedMethods(s *grpc.Server) map[string]bool {
	methods := map[string]bool{}
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			methods["/"+service+"/"+m.Name] = m.IsClientStream || m.IsServerStream
		}
	}
	return methods
}

// A method that is served has a rule, and no rule is about nothing.
func TestEveryMethodHasARule(t *testing.T) {
	r := newRig(t, newMemory())
	grant(t, r.client(), testKey, "a") // it serves
	for method := range servedMethods(r.grpc) {
		if _, ok := rules[method]; !ok {
			t.Errorf("%s is registered and has no rule", method)
		}
	}
	for method := range rules {
		if descriptorOf(method) == nil {
			t.Errorf("there is a rule for %s, which there is not", method)
		}
	}
}

// A registered method without a rule is refused, whoever asks.
func TestMethodsWithoutARule(t *testing.T) {
	for _, method := range []string{pb.AdminService_ListBuckets_FullMethodName, pb.IdempotencyService_Session_FullMethodName} {
		without := rules[method]
		delete(rules, method)
		for _, conn := range []*grpc.ClientConn{newRig(t, newMemory()).connect(), newSecured(t).as(operatorToken)} {
			if _, err := askAbout(t, conn, method, "payments"); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: %v", method, err)
			}
		}
		rules[method] = without
	}
}

func descriptorOf(method string) protoreflect.MethodDescriptor {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil
	}
	return d.(protoreflect.MethodDescriptor)
}

// askAbout calls a method with a request about a namespace, and returns the first answer.
func askAbout(t *testing.T, conn *grpc.ClientConn, method, namespace string) (proto.Message, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := descriptorOf(method)
	request, response := dynamicpb.NewMessage(d.Input()), dynamicpb.NewMessage(d.Output())
	nameNamespace(request, namespace)
	if !d.IsStreamingClient() && !d.IsStreamingServer() {
		return response, conn.Invoke(ctx, method, request, response)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_ = stream.CloseSend() // never fails
	if err := stream.RecvMsg(response); !errors.Is(err, io.EOF) {
		return response, err
	}
	return response, nil
}

// nameNamespace names the namespace in a request, wherever that has one.
func nameNamespace(request *dynamicpb.Message, namespace string) {
	fields := request.Descriptor().Fields()
	for i := range fields.Len() {
		switch field := fields.Get(i); {
		case field.Name() == "key":
			key := request.Mutable(field).Message()
			key.Set(field.Message().Fields().ByName("namespace"), protoreflect.ValueOfString(namespace))
			key.Set(field.Message().Fields().ByName("id"), protoreflect.ValueOfString("order-1"))
		case field.Name() == "namespace" && field.Kind() == protoreflect.MessageKind:
			of := request.Mutable(field).Message()
			of.Set(field.Message().Fields().ByName("name"), protoreflect.ValueOfString(namespace))
		case field.Name() == "namespace", field.Name() == "name":
			request.Set(field, protoreflect.ValueOfString(namespace))
		}
	}
}

// reason is what a refusal says to a program.
func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

const (
	notKnown      = "UNAUTHENTICATED"
	notAllowed    = "PERMISSION_DENIED"
	looksAbsent   = "NAMESPACE_UNKNOWN"
	carriedOut    = "" // or refused for another reason
	notAuthorised = notKnown + notAllowed + looksAbsent
)

// Every method of the server, asked about the namespace payments by everybody.
func TestWhoMayCallWhat(t *testing.T) {
	s := newSecured(t)
	conns := map[string]*grpc.ClientConn{}
	for _, principal := range []string{"", stranger, paymentsCaller, paymentsOperator, otherTenant, everyCaller, operatorToken, region} {
		conns[principal] = s.as(principal)
	}
	if _, err := askAbout(t, conns[everyCaller], pb.IdempotencyService_Claim_FullMethodName, "payments"); reason(err) == notKnown {
		t.Fatal(err)
	}
	served := servedMethods(s.grpc)
	for _, method := range ourMethods() {
		if _, ok := served[method]; !ok {
			t.Errorf("%s is asked of nobody: it is not served here", method)
		}
	}
	for method := range served {
		r := rules[method]
		for principal, conn := range conns {
			want := carriedOut
			switch has := rolesOf[principal]; {
			case r.open():
			case principal == "":
				want = notKnown
			case !slices.ContainsFunc(r.anyOf, func(role identity.Role) bool { return slices.Contains(has, role) }):
				want = notAllowed
			case r.all != nil && r.all(nil) && principal != operatorToken:
				want = notAllowed
			case r.namespace != nil && principal == otherTenant && r.creates:
				want = notAllowed
			case r.namespace != nil && principal == otherTenant:
				want = looksAbsent
			}
			_, err := askAbout(t, conn, method, "payments")
			got := reason(err)
			if want != carriedOut && got != want || want == carriedOut && got != "" && strings.Contains(notAuthorised, got) {
				t.Errorf("%s asks %s: %v, want %q", principal, method, err, want)
			}
			if want == notAllowed && !strings.Contains(err.Error(), principal+" needs the role "+r.anyOf[0].String()) {
				t.Errorf("%s asks %s: the refusal does not say which role it takes: %v", principal, method, err)
			}
		}
	}
	if text := s.log.String(); strings.Contains(text, s.token) || strings.Contains(text, strings.Fields(s.tokenLine)[1][7:]) {
		t.Error("the log shows the token or its digest")
	}
}

// ourMethods are those of all services in proto/idemd/v1.
func ourMethods() (methods []string) {
	protoregistry.GlobalFiles.RangeFilesByPackage("idemd.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				methods = append(methods, fmt.Sprintf("/%s/%s", service.FullName(), service.Methods().Get(j).Name()))
			}
		}
		return true
	})
	return methods
}

var rolesOf = map[string][]identity.Role{
	paymentsCaller: {identity.Caller}, everyCaller: {identity.Caller},
	paymentsOperator: {identity.Operator}, operatorToken: {identity.Operator},
	otherTenant: {identity.Caller, identity.Operator}, region: {identity.Peer},
}

// A stream that is refused for what it asks for is in the log as a call is.
func TestRefusedStreamsAreLogged(t *testing.T) {
	s := newSecured(t)
	const method = pb.AdminService_MoveNamespace_FullMethodName
	if _, err := askAbout(t, s.as(otherTenant), method, "payments"); reason(err) != looksAbsent {
		t.Fatal(err)
	}
	if text := s.log.String(); strings.Count(text, "method="+method) != 1 || !strings.Contains(text, "principal="+otherTenant) || !strings.Contains(text, looksAbsent) {
		t.Errorf("the log:\n%s", text)
	}
}

// What is about all namespaces that there will be is not for the operator of some.
func TestLiftingForNewNamespaces(t *testing.T) {
	s := newSecured(t)
	s.change("policy.yaml", testPolicy+"  - {principal: spiffe://example.org/default, role: operator, namespaces: [default, new]}\n")
	begin(t, s.local(), "", "alice", "restored")
	for principal, want := range map[string]string{"spiffe://example.org/default": notAllowed, operatorToken: carriedOut} {
		_, err := pb.NewAdminServiceClient(s.as(principal)).LiftRecovery(t.Context(), &pb.LiftRecoveryRequest{ForNew: true, LeasesEnded: true, Reason: "r", Actor: "alice"})
		if reason(err) != want {
			t.Errorf("%s: %v, want %q", principal, err, want)
		}
	}
}

// What a principal may not use looks like what is not there: to those who may not use it, and
// to those who may use everything.
func TestAnothersNamespaceLooksAbsent(t *testing.T) {
	s := newSecured(t)
	other, every, operator := s.as(otherTenant), s.as(everyCaller), s.as(operatorToken)
	grant(t, s.local(), store.Key{Namespace: "payments", ID: "order-1"}, "a")
	for method, r := range rules {
		if r.namespace == nil || r.creates || method == pb.AdminService_MoveNamespace_FullMethodName {
			continue
		}
		all := every
		if r.anyOf[0] == identity.Operator {
			all = operator
		}
		text := func(conn *grpc.ClientConn, namespace string) string {
			_, err := askWell(t, conn, method, namespace)
			return strings.ReplaceAll(status.Convert(err).String(), namespace, "NAME")
		}
		want := text(other, "absent")
		if existing, absent := text(other, "payments"), text(all, "absent"); existing != want || absent != want || !strings.Contains(want, "NAME") {
			t.Errorf("%s:\nanother's: %s\nabsent:    %s\nreally:    %s", method, existing, want, absent)
		}
	}
}

// local is the store without a server.
func (s *secured) local() store.Backend { return s.config.Backend }

// askWell calls a method with a request that is valid.
func askWell(t *testing.T, conn *grpc.ClientConn, method, namespace string) (proto.Message, error) {
	t.Helper()
	key := storepb.KeyToProto(store.Key{Namespace: namespace, ID: "order-1"})
	var request proto.Message
	switch method {
	case pb.IdempotencyService_Claim_FullMethodName:
		request = &pb.ClaimRequest{Key: key, AttemptId: []byte("a")}
	case pb.IdempotencyService_Renew_FullMethodName:
		request = &pb.RenewRequest{Key: key, AttemptId: []byte("a"), Fence: 1}
	case pb.IdempotencyService_Complete_FullMethodName:
		request = &pb.CompleteRequest{Key: key, AttemptId: []byte("a"), Fence: 1, Outcome: &pb.Outcome{}}
	case pb.IdempotencyService_Release_FullMethodName:
		request = &pb.ReleaseRequest{Key: key, AttemptId: []byte("a"), Fence: 1, Effect: pb.Effect_EFFECT_NONE}
	case pb.AdminService_Resolve_FullMethodName:
		request = &pb.ResolveRequest{Key: key, AnyFence: true, Reason: "r", Actor: "alice"}
	case pb.AdminService_ForceRelease_FullMethodName:
		request = &pb.ForceReleaseRequest{Key: key, AnyFence: true, Reason: "r", Actor: "alice"}
	case pb.AdminService_ImportOutcome_FullMethodName:
		request = &pb.ImportOutcomeRequest{Key: key, Reason: "r", Actor: "alice"}
	case pb.AdminService_LiftRecovery_FullMethodName:
		request = &pb.LiftRecoveryRequest{Namespace: namespace, Reason: "r", Actor: "alice"}
	default:
		return askAbout(t, conn, method, namespace)
	}
	response := dynamicpb.NewMessage(descriptorOf(method).Output())
	return response, conn.Invoke(t.Context(), method, request, response)
}
