package storepb

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// sentinelNames reads the names of the sentinels out of package store's source, so that
// one that is added there and not here is noticed.
func sentinelNames(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../errors.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if ast.IsExported(name.Name) {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

func TestEverySentinelIsMapped(t *testing.T) {
	names := sentinelNames(t)
	if len(names) < 20 {
		t.Fatalf("found only %d sentinels in store/errors.go: %v", len(names), names)
	}
	// Equal numbers, and no sentinel twice, mean that every sentinel has one row.
	if len(names) != len(refusals) {
		t.Fatalf("store/errors.go has %d sentinels, the table has %d rows", len(names), len(refusals))
	}
	var seen []error
	for _, row := range refusals {
		if row.sentinel == nil || slices.Contains(seen, row.sentinel) {
			t.Errorf("sentinel %v is missing or mapped twice", row.sentinel)
		}
		seen = append(seen, row.sentinel)
	}
}

func TestEveryReasonIsMapped(t *testing.T) {
	for number := range pb.ErrorReason_name {
		reason := pb.ErrorReason(number)
		rows, want := 0, 1
		for _, row := range refusals {
			if row.reason == reason {
				rows++
			}
		}
		if reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
			want = 0
		}
		if rows != want {
			t.Errorf("%v is in %d rows of the table", reason, rows)
		}
	}
}

func TestSentinelsCrossTheWire(t *testing.T) {
	for _, row := range refusals {
		t.Run(ReasonName(row.reason), func(t *testing.T) {
			secret := errors.New("the secret cause")
			sent := &store.Error{Sentinel: row.sentinel, Detail: "é: what to do", RetryAfter: 1500 * time.Millisecond, Cause: secret}
			st := ToStatus(fmt.Errorf("wrapped: %w", sent))
			if st.Code() != row.code {
				t.Errorf("code %v, want %v", st.Code(), row.code)
			}
			if strings.Contains(st.String(), "secret") || strings.Contains(st.String(), "wrapped") {
				t.Errorf("the status says more than the public text: %v", st)
			}
			info := st.Details()[0].(*errdetails.ErrorInfo)
			if info.GetDomain() != "idemd" || info.GetReason() != strings.TrimPrefix(row.reason.String(), "ERROR_REASON_") {
				t.Errorf("ErrorInfo is %v", info)
			}

			var got *store.Error
			if err := FromStatus(st.Err()); !errors.As(err, &got) {
				t.Fatalf("FromStatus gave %v", err)
			}
			if got.Sentinel != row.sentinel || got.Detail != sent.Detail || got.RetryAfter != sent.RetryAfter {
				t.Errorf("came back as %+v, sent %+v", got, sent)
			}
			if got.Error() != sent.Error() || !errors.Is(got, row.sentinel) {
				t.Errorf("text came back as %q, sent %q", got, sent)
			}
			if errors.Is(got, secret) || status.Code(got) != row.code {
				t.Errorf("the cause must be the gRPC error: %v", got.Cause)
			}
			// A router sends on what it got.
			if again := ToStatus(got); again.Code() != st.Code() || again.Message() != st.Message() {
				t.Errorf("sent on as %v, was %v", again, st)
			}
			if Reason(sent) != row.reason || Reason(got) != row.reason {
				t.Errorf("Reason says %v and %v", Reason(sent), Reason(got))
			}
		})
	}
}

func TestBareSentinelCrossesTheWire(t *testing.T) {
	st := ToStatus(fmt.Errorf("page 7 of file x: %w", store.ErrRecordCorrupt))
	if st.Message() != store.ErrRecordCorrupt.Error() {
		t.Errorf("message is %q", st.Message())
	}
	var got *store.Error
	if err := FromStatus(st.Err()); !errors.As(err, &got) || got.Sentinel != store.ErrRecordCorrupt || got.Detail != "" || got.RetryAfter != 0 {
		t.Errorf("came back as %+v", got)
	}
	if n := len(st.Details()); n != 1 {
		t.Errorf("%d details, want the ErrorInfo only", n)
	}
}

// A refusal says when to send the request again if, and only if, that can help.
func TestWhatIsWorthRetryingSaysWhen(t *testing.T) {
	worth := []pb.ErrorReason{
		pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE,
		pb.ErrorReason_ERROR_REASON_HOME_UNREACHABLE,
		pb.ErrorReason_ERROR_REASON_NO_HOME,
		pb.ErrorReason_ERROR_REASON_NAMESPACE_MOVING,
		pb.ErrorReason_ERROR_REASON_OVERLOADED,
		pb.ErrorReason_ERROR_REASON_QUOTA,
		pb.ErrorReason_ERROR_REASON_INTERNAL, // to be treated as STORE_UNAVAILABLE
	}
	for _, row := range refusals {
		want := time.Duration(0)
		if slices.Contains(worth, row.reason) {
			want = time.Second
		}
		for _, err := range []error{row.sentinel, store.Refuse(row.sentinel, "detail")} {
			if _, got := details(ToStatus(err)); got != want {
				t.Errorf("%v says %v, want %v", row.reason, got, want)
			}
		}
		own := &store.Error{Sentinel: row.sentinel, RetryAfter: 3 * time.Second}
		if _, got := details(ToStatus(own)); got != own.RetryAfter {
			t.Errorf("%v with a hint of its own says %v", row.reason, got)
		}
	}
}

func TestCauseDoesNotDecide(t *testing.T) {
	for _, cause := range []error{context.DeadlineExceeded, store.ErrStaleFence, status.Error(codes.OK, "")} {
		err := &store.Error{Sentinel: store.ErrUnavailable, Cause: cause}
		if st := ToStatus(err); st.Code() != codes.Unavailable {
			t.Errorf("with the cause %v: %v", cause, st)
		}
	}
}

func TestNilIsOK(t *testing.T) {
	if st := ToStatus(nil); st.Err() != nil {
		t.Errorf("ToStatus(nil) = %v", st)
	}
	if err := FromStatus(nil); err != nil {
		t.Errorf("FromStatus(nil) = %v", err)
	}
	if r := Reason(nil); r != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		t.Errorf("Reason(nil) = %v", r)
	}
}

func TestContextErrorsCrossTheWire(t *testing.T) {
	for err, code := range map[error]codes.Code{
		context.Canceled:         codes.Canceled,
		context.DeadlineExceeded: codes.DeadlineExceeded,
	} {
		st := ToStatus(fmt.Errorf("waiting for the log: %w", err))
		if st.Code() != code || strings.Contains(st.Message(), "log") {
			t.Errorf("%v became %v", err, st)
		}
		if got := FromStatus(st.Err()); got != err {
			t.Errorf("%v came back as %v", err, got)
		}
		if got := FromStatus(err); got != err {
			t.Errorf("FromStatus(%v) = %v", err, got)
		}
		if r := Reason(err); r != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
			t.Errorf("Reason(%v) = %v", err, r)
		}
	}
}

func TestUnknownErrorsSayNothing(t *testing.T) {
	for _, err := range []error{
		errors.New("open /var/lib/secret: denied"),
		&store.Error{Detail: "secret"},
		&store.Error{Sentinel: errors.New("secret"), Detail: "secret"},
		status.Error(codes.NotFound, "secret"),
		uncomparable{"secret"},
	} {
		st := ToStatus(err)
		if st.Code() != codes.Internal || strings.Contains(st.String(), "secret") {
			t.Errorf("%T became %v", err, st)
		}
		if got := FromStatus(st.Err()); !errors.Is(got, store.ErrInternal) {
			t.Errorf("came back as %v", got)
		}
		if Reason(err) != pb.ErrorReason_ERROR_REASON_INTERNAL {
			t.Errorf("Reason(%v) = %v", err, Reason(err))
		}
	}
}

type uncomparable []string

func (u uncomparable) Error() string { return u[0] }

func TestReasonsOfANewerServer(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.InvalidArgument:    store.ErrInvalidArgument,
		codes.FailedPrecondition: store.ErrInvalidArgument,
		codes.PermissionDenied:   store.ErrPermissionDenied,
		codes.NotFound:           store.ErrKeyNotFound,
		codes.Aborted:            store.ErrStaleFence,
		codes.AlreadyExists:      store.ErrAlreadyCompleted,
		codes.Unavailable:        store.ErrUnavailable,
		codes.ResourceExhausted:  store.ErrOverloaded,
		codes.DataLoss:           store.ErrRecordCorrupt,
		codes.Internal:           store.ErrInternal,
		codes.Unknown:            store.ErrInternal,
		codes.Code(99):           store.ErrInternal,
	} {
		st, err := status.New(code, "frobnicate first").WithDetails(
			&errdetails.ErrorInfo{Reason: "NOT_FROBNICATED", Domain: Domain},
			&errdetails.RetryInfo{})
		if err != nil {
			t.Fatal(err)
		}
		got := FromStatus(st.Err())
		if !errors.Is(got, want) {
			t.Errorf("%v came back as %v, want %v", code, got, want)
		}
		for _, text := range []string{"NOT_FROBNICATED", "frobnicate first"} {
			if !strings.Contains(got.Error(), text) {
				t.Errorf("%q does not say %q", got, text)
			}
		}
	}
}

func TestStatusesThatIdemdDidNotMake(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.Unavailable:     store.ErrUnavailable, // the connection broke
		codes.Unimplemented:   store.ErrInvalidArgument,
		codes.Unauthenticated: store.ErrUnauthenticated,
		// A message that was too large on its way back: it may have been done.
		codes.ResourceExhausted: store.ErrUnavailable,
		// A proxy does not know what became of the key.
		codes.NotFound:      store.ErrInternal,
		codes.Aborted:       store.ErrInternal,
		codes.AlreadyExists: store.ErrInternal,
		codes.Internal:      store.ErrInternal,
		codes.Unknown:       store.ErrInternal,
	} {
		plain := status.New(code, "from elsewhere")
		foreign, err := plain.WithDetails(&errdetails.ErrorInfo{Reason: "STALE_FENCE", Domain: "example.com"})
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range []*status.Status{plain, foreign} {
			if got := FromStatus(st.Err()); !errors.Is(got, want) {
				t.Errorf("%v came back as %v, want %v", code, got, want)
			}
		}
	}
	if got := FromStatus(io.ErrUnexpectedEOF); !errors.Is(got, store.ErrInternal) {
		t.Errorf("an error without a status came back as %v", got)
	}
}

func TestStatusTextSurvivesTheHeaders(t *testing.T) {
	hostile := store.Refuse(store.ErrInvalidArgument, "got \xff\xfe"+strings.Repeat("é", 1<<20))
	st := ToStatus(hostile)
	if len(st.Message()) > 2*maxMessageBytes {
		t.Errorf("message has %d bytes", len(st.Message()))
	}
	if got := FromStatus(st.Err()); !errors.Is(got, store.ErrInvalidArgument) {
		t.Errorf("came back as %v", got)
	}
	for _, d := range st.Details() {
		if err, bad := d.(error); bad {
			t.Errorf("a detail was lost: %v", err)
		}
	}
}

func TestHostileRetryInfo(t *testing.T) {
	for _, seconds := range []int64{-5, 1 << 62, -1 << 62} {
		info := &errdetails.RetryInfo{RetryDelay: durationOf(seconds, 0)}
		st, err := status.New(codes.Unavailable, "").WithDetails(&errdetails.ErrorInfo{Reason: "STORE_UNAVAILABLE", Domain: Domain}, info)
		if err != nil {
			t.Fatal(err)
		}
		var got *store.Error
		if !errors.As(FromStatus(st.Err()), &got) || got.RetryAfter != 0 {
			t.Errorf("a delay of %d s came back as %v", seconds, got.RetryAfter)
		}
	}
}

func BenchmarkToStatus(b *testing.B) {
	err := store.Refuse(store.ErrInternal, "the last row of the table")
	b.ReportAllocs()
	for b.Loop() {
		ToStatus(err)
	}
}
