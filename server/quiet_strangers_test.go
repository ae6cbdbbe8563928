package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "github.com/idemd/idemd/proto/idemd/v1"
)

// Who is not known does not fill the disk, whatever is asked for; who is known is told each time.
func TestStrangersWriteFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecured(t)
		defer s.close()
		conn := s.dial(nil)
		long := strings.Repeat("x", 800)
		for i := range 20 {
			_ = conn.Invoke(t.Context(), fmt.Sprint("/", i, long, "/", long), &emptypb.Empty{}, &emptypb.Empty{})
			_ = conn.Invoke(t.Context(), fmt.Sprint("/none/", i), &emptypb.Empty{}, &emptypb.Empty{})
			_, _ = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: fmt.Sprint(i)})
			_ = conn.Invoke(t.Context(), healthpb.Health_Check_FullMethodName, &pb.PutNamespaceRequest{Region: "\xff"}, &emptypb.Empty{})
			_ = conn.Invoke(t.Context(), pb.IdempotencyService_Lookup_FullMethodName, &emptypb.Empty{}, &emptypb.Empty{})
		}
		if lines := strings.Count(s.log.String(), "\n"); lines > 5 {
			t.Errorf("%d lines, want at most one of a code and a method:\n%.3000s", lines, s.log)
		}
		for _, line := range strings.Split(s.log.String(), "\n") {
			if len(line) > 400 {
				t.Errorf("a line of %d bytes: %.500s", len(line), line)
			}
		}
		if kinds := len(s.calls.often.kinds); kinds > 5 {
			t.Errorf("%d kinds are kept", kinds)
		}
		time.Sleep(quietFor)
		_ = conn.Invoke(t.Context(), "/none/again", &emptypb.Empty{}, &emptypb.Empty{})
		if want := "more_not_logged=39"; !strings.Contains(s.log.String(), want) {
			t.Errorf("no %s in\n%.3000s", want, s.log)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.token)
		for range 10 {
			_, _ = pb.NewIdempotencyServiceClient(conn).Lookup(ctx, &pb.LookupRequest{})
		}
		if lines := strings.Count(s.log.String(), "principal="+operatorToken); lines != 10 {
			t.Errorf("%d lines of somebody who is known, want 10:\n%s", lines, s.log)
		}
	})
}

func TestStrangersOfTheAdminListenerWriteFewLines(t *testing.T) {
	s := newSecured(t)
	for range 20 {
		s.admin.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil))
	}
	if lines := strings.Count(s.log.String(), "\n"); lines != 1 {
		t.Errorf("%d lines:\n%s", lines, s.log)
	}
}

// A service that is not there is the question's fault.
func TestHealthOfAnUnknownServiceIsLoggedAsThat(t *testing.T) {
	r := newRig(t, newMemory())
	_, err := healthpb.NewHealthClient(r.connect()).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "none"})
	if log := r.log.String(); status.Code(err) != codes.NotFound || !strings.Contains(log, "code=NOT_FOUND") || !strings.Contains(log, "level=INFO") ||
		strings.Contains(log, "INTERNAL") {
		t.Errorf("%v is logged as:\n%s", err, log)
	}
}
