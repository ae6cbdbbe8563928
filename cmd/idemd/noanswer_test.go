package main

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// mute is a server that does not say what became of a claim.
type mute struct {
	idemdv1.UnimplementedIdempotencyServiceServer
	err      error       // nil: it answers when the caller has gone
	attempts chan []byte // what was claimed with
}

func (m *mute) Claim(ctx context.Context, req *idemdv1.ClaimRequest) (*idemdv1.ClaimResponse, error) {
	m.attempts <- req.GetAttemptId()
	if _, foreign := status.FromError(m.err); foreign && m.err != nil {
		return nil, m.err
	}
	if m.err != nil {
		return nil, storepb.ToStatus(m.err).Err()
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func serveMute(t *testing.T, err error) (*mute, string) {
	t.Helper()
	listener, listenErr := net.Listen("tcp", "127.0.0.1:0")
	if listenErr != nil {
		t.Fatal(listenErr)
	}
	m := &mute{err: err, attempts: make(chan []byte, 1)}
	server := grpc.NewServer()
	idemdv1.RegisterIdempotencyServiceServer(server, m)
	go server.Serve(listener) //nolint:errcheck // it ends when it is stopped
	t.Cleanup(server.Stop)
	return m, listener.Addr().String()
}

// TestNoAnswerToAClaim checks that a claim of which nobody knows what became can be asked
// again: the attempt id that was drawn is told.
func TestNoAnswerToAClaim(t *testing.T) {
	for want, err := range map[string]error{
		"STORE_UNAVAILABLE: ": store.ErrUnavailable,
		"HOME_UNREACHABLE: ":  store.ErrHomeUnreachable,
		"INTERNAL: ":          store.ErrInternal,
		" within 60ms":        nil,
		// What stands in between knows nothing of the key.
		"answered INTERNAL: from a proxy":           status.Error(codes.Internal, "from a proxy"),
		"answered ABORTED: from a proxy":            status.Error(codes.Aborted, "from a proxy"),
		"answered RESOURCE_EXHAUSTED: from a proxy": status.Error(codes.ResourceExhausted, "from a proxy"),
	} {
		m, addr := serveMute(t, err)
		r := run(t, "claim", "--id=a", "--addr="+addr, "--timeout=50ms", "--wait=10ms")
		r.fails(t, exitNoAnswer, want, "ask again with --attempt ")
		if attempt := string(<-m.attempts); !strings.HasSuffix(r.stderr, "--attempt "+attempt+"\n") {
			t.Errorf("the claim was made with %s, and said was %q", attempt, r.stderr)
		}
	}
}

// Where no region serves the key nothing was done, and nobody is told that it may have been.
func TestNoHome(t *testing.T) {
	_, addr := serveMute(t, store.ErrNoHome)
	r := run(t, "claim", "--id=a", "--addr="+addr)
	r.fails(t, exitNoAnswer, "NO_HOME: ", "; nothing was done; ask again")
	if strings.Contains(r.stderr, "may have been granted") {
		t.Errorf("said was %q", r.stderr)
	}
	err := errors.New("NO_HOME: the store is home to no keys yet")
	for advice, want := range map[string]string{sendAgain: "nothing was done; run the same command again", moveAgain: moveAgain, acceptAgain: acceptAgain} {
		if got := adviceAfter(err, advice); got != want {
			t.Errorf("for %q: %q, want %q", advice, got, want)
		}
	}
}

// TestNotSent checks that a status that comes before anything is done is a refusal, whoever
// made it.
func TestNotSent(t *testing.T) {
	for want, code := range map[string]codes.Code{"answered UNIMPLEMENTED: no": codes.Unimplemented, "answered PERMISSION_DENIED: no": codes.PermissionDenied} {
		_, addr := serveMute(t, status.Error(code, "no"))
		run(t, "claim", "--id=a", "--addr="+addr).fails(t, exitFailed, want)
	}
}

func TestNoAnswer(t *testing.T) {
	lookup := []string{"lookup", "--id=a", "--addr=" + freeAddr(t)}
	run(t, lookup...).fails(t, exitNoAnswer, "idemd serve", "nothing was sent")
	if r := run(t, lookup...); strings.Contains(r.stderr, "attempt") || strings.Contains(r.stderr, "transport") {
		t.Errorf("lookup has no attempt, and the user no transport: %s", r.stderr)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stderr lockedBuffer
	p := program{name: "idemd", exit: exitUnexpectedly(t)}
	code := p.Run(ctx, lookup, strings.NewReader(""), &stderr, &stderr)
	if code != exitNoAnswer || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("interrupted: exit code %d, %s", code, stderr.String())
	}
}

// fullDisk is where nothing can be written to.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestAnswerCannotBeWritten checks that an answer nobody saw does not pass for one.
func TestAnswerCannotBeWritten(t *testing.T) {
	s := serve(t, t.TempDir())
	for _, args := range [][]string{
		{"version"}, {"--version"}, {"--help"},
		{"claim", "--id=a", "--addr=" + s.addr}, {"lookup", "--id=a", "-o", "json", "--addr=" + s.addr},
	} {
		var stderr strings.Builder
		p := program{name: "idemd", exit: exitUnexpectedly(t)}
		code := p.Run(t.Context(), args, strings.NewReader(""), io.Writer(fullDisk{}), &stderr)
		result{code: code, stderr: stderr.String()}.fails(t, exitNoAnswer, "could not be written", "no space left")
		if args[0] == "claim" && !strings.Contains(stderr.String(), "--attempt ") {
			t.Errorf("the attempt is lost: %s", stderr.String())
		}
	}
}
