package server

import (
	"testing"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store/storepb"
)

// What another region asks in somebody's name, that somebody must be allowed here: in the
// namespace, or, for what is about all, in all of them.
func TestWhoIsAuthorisedForAnotherRegion(t *testing.T) {
	s := newSecured(t)
	for _, test := range []struct{ caller, method, namespace, want string }{
		{paymentsOperator, pb.AdminService_Resolve_FullMethodName, "payments", carriedOut},
		{paymentsOperator, pb.AdminService_Resolve_FullMethodName, "other", looksAbsent},
		{everyCaller, pb.AdminService_AcceptStore_FullMethodName, "", notAllowed},
		{paymentsOperator, pb.AdminService_AcceptStore_FullMethodName, "", notAllowed},
		{operatorToken, pb.AdminService_AcceptStore_FullMethodName, "", carriedOut},
	} {
		err := AuthorizeForwarded(s.authority, test.caller, test.method, test.namespace)
		if got := reason(storepb.ToStatus(err).Err()); got != test.want {
			t.Errorf("%s, %s of %q: %v, want %q", test.caller, test.method, test.namespace, err, test.want)
		}
	}
}
