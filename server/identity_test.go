package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/idemd/idemd/client"
	pb "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/server/identity"
	"github.com/idemd/idemd/server/identity/devca"
	"github.com/idemd/idemd/store"
)

// sessionOperations are one of each kind, about a namespace.
func sessionOperations(namespace string) []*pb.SessionOperation {
	key := &pb.Key{Namespace: namespace, Id: "order-1"}
	return []*pb.SessionOperation{
		{Request: &pb.SessionOperation_Claim{Claim: &pb.ClaimRequest{Key: key, AttemptId: []byte("a")}}},
		{Request: &pb.SessionOperation_Renew{Renew: &pb.RenewRequest{Key: key, AttemptId: []byte("a"), Fence: 1}}},
		{Request: &pb.SessionOperation_Complete{Complete: &pb.CompleteRequest{Key: key, AttemptId: []byte("a"), Fence: 1, Outcome: &pb.Outcome{}}}},
		{Request: &pb.SessionOperation_Release{Release: &pb.ReleaseRequest{Key: key, AttemptId: []byte("a"), Fence: 1, Effect: pb.Effect_EFFECT_NONE}}},
		{Request: &pb.SessionOperation_Lookup{Lookup: &pb.LookupRequest{Key: key}}},
	}
}

// all sends an operation of each kind, and checks how all of them are refused.
func (s *rawSession) all(first uint64, namespace string, code codes.Code, reason string) {
	s.Helper()
	for i, o := range sessionOperations(namespace) {
		o.Id = first + uint64(i)
		s.send(o)
		s.refused(o.GetId(), code, reason)
	}
}

// Each operation of a session is authorised by itself, by what the files say then.
func TestSessionsAreAuthorised(t *testing.T) {
	s := newSecured(t)
	for principal, want := range map[string]codes.Code{
		"": codes.Unauthenticated, stranger: codes.PermissionDenied, operatorToken: codes.PermissionDenied, region: codes.PermissionDenied,
	} {
		if code, _ := reasonIn(openSession(t.Context(), t, s.as(principal)).end()); code != want {
			t.Errorf("%q opens a session: %v", principal, code)
		}
	}
	x := openSession(t.Context(), t, s.as(paymentsCaller))
	x.all(1, "other", codes.NotFound, looksAbsent)
	x.all(11, "absent", codes.NotFound, looksAbsent)
	x.all(21, "UPPER", codes.InvalidArgument, "INVALID_ARGUMENT")
	o := sessionOperations("payments")[0]
	o.Id = 31
	x.send(o)
	x.granted(31)

	s.change("policy.yaml", strings.ReplaceAll(testPolicy, "[payments]", "[other]"))
	x.all(41, "payments", codes.NotFound, looksAbsent)
	s.change("policy.yaml", strings.Replace(testPolicy, "org/payments\"", "org/somebody-else\"", 1))
	x.all(51, "payments", codes.PermissionDenied, notAllowed)
	s.change("policy.yaml", testPolicy)
	s.change("ca.pem", string(s.newCA().PEM()))
	x.all(61, "payments", codes.Unauthenticated, notKnown)
	s.change("ca.pem", string(s.ca.PEM()))
	o.Id = 71
	x.send(o)
	x.granted(71)
	s.ahead.Store(int64(2 * time.Hour)) // the certificate is over
	x.all(81, "payments", codes.Unauthenticated, notKnown)
	if !strings.Contains(s.log.String(), "unknown authority") {
		t.Errorf("the log does not say why:\n%s", s.log)
	}
}

func TestTokensOfSessions(t *testing.T) {
	s := newSecured(t)
	secret, line, _ := identity.NewToken("claims", time.Now().Add(time.Hour))
	s.change("tokens", s.tokenLine+"\n"+line)
	x := openSession(t.Context(), t, s.dial(nil, client.BearerToken(func() string { return secret })))
	o := sessionOperations("payments")[0]
	o.Id = 1
	x.send(o)
	x.granted(1)
	x.all(11, "other", codes.NotFound, looksAbsent)
	s.ahead.Store(int64(time.Hour))
	x.all(21, "payments", codes.Unauthenticated, notKnown)
	s.ahead.Store(0)
	s.change("tokens", s.tokenLine)
	x.all(31, "payments", codes.Unauthenticated, notKnown)
	if text := s.log.String(); !strings.Contains(text, "the token is not known") && !strings.Contains(text, "the token of claims expired") {
		t.Errorf("the log does not say why:\n%s", text)
	} else if strings.Contains(text, secret) || strings.Contains(text, strings.Fields(line)[1][7:]) {
		t.Error("the log shows the token or its digest")
	}
}

// A certificate that does not count: by TLS, or by what it names.
func TestCertificatesThatDoNotCount(t *testing.T) {
	s := newSecured(t)
	good := devca.Leaf{URIs: []string{paymentsCaller}, Client: true}
	leaf := func(change func(*devca.Leaf)) devca.Leaf {
		l := good
		change(&l)
		return l
	}
	for name, test := range map[string]struct {
		pair devca.Pair
		want codes.Code
	}{
		"good":               {s.issue(s.ca, good), codes.OK},
		"expired":            {s.issue(s.ca, leaf(func(l *devca.Leaf) { l.NotAfter = time.Now().Add(-time.Minute) })), codes.Unavailable},
		"another authority":  {s.issue(s.newCA(), good), codes.Unavailable},
		"for a server only":  {s.issue(s.ca, leaf(func(l *devca.Leaf) { l.Client, l.Server = false, true })), codes.Unavailable},
		"wrong trust domain": {s.issue(s.ca, leaf(func(l *devca.Leaf) { l.URIs = []string{"spiffe://example.com/payments"} })), codes.Unauthenticated},
		"two URIs":           {s.issue(s.ca, leaf(func(l *devca.Leaf) { l.URIs = append(l.URIs, paymentsCaller+"/2") })), codes.Unauthenticated},
		"a name it may not":  {s.issue(s.ca, leaf(func(l *devca.Leaf) { l.URIs, l.DNS = nil, []string{"payments"} })), codes.PermissionDenied},
		"no name":            {s.issue(s.ca, leaf(func(l *devca.Leaf) { l.URIs = nil })), codes.Unauthenticated},
	} {
		_, err := pb.NewIdempotencyServiceClient(s.dial(&test.pair)).Claim(t.Context(), &pb.ClaimRequest{
			Key: &pb.Key{Namespace: "payments", Id: "order-1"}, AttemptId: []byte("a"),
		})
		if code, _ := reasonIn(err); code != test.want {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// Of somebody who is not known no request is read, whatever it is.
func TestNothingIsReadOfStrangers(t *testing.T) {
	s := newSecured(t)
	for principal, want := range map[string]string{"": notKnown, paymentsCaller: "INVALID_ARGUMENT"} {
		err := send(t.Context(), s.as(principal), pb.IdempotencyService_Claim_FullMethodName, []byte("no message"))
		if reason(err) != want {
			t.Errorf("%q: %v, want %s", principal, err, want)
		}
	}
}

// A token counts, and the certificate beside it does not.
func TestTokenAndCertificate(t *testing.T) {
	s := newSecured(t)
	both := s.dial(s.certOf(paymentsCaller), client.BearerToken(func() string { return s.token }))
	if _, err := askAbout(t, both, pb.IdempotencyService_Lookup_FullMethodName, "payments"); reason(err) != notAllowed || !strings.Contains(err.Error(), operatorToken) {
		t.Errorf("as a caller: %v", err)
	}
	if _, err := askAbout(t, both, pb.AdminService_ListBuckets_FullMethodName, ""); err != nil {
		t.Errorf("as an operator: %v", err)
	}
	bad := s.dial(s.certOf(paymentsCaller), client.BearerToken(func() string { return s.token + "x" }))
	_, err := askAbout(t, bad, pb.IdempotencyService_Lookup_FullMethodName, "payments")
	_, none := askAbout(t, s.as(""), pb.IdempotencyService_Lookup_FullMethodName, "payments")
	if reason(err) != notKnown || err.Error() != none.Error() {
		t.Errorf("a bad token beside a good certificate: %v", err)
	}
}

// What a caller says of itself is no identity.
func TestMetadataIsNoIdentity(t *testing.T) {
	s := newSecured(t)
	cert := strings.ReplaceAll(string(s.certOf(paymentsCaller).Cert), "\n", "%0A")
	ctx := metadata.AppendToOutgoingContext(t.Context(),
		"x-forwarded-client-cert", "URI="+paymentsCaller+`;Cert="`+cert+`"`, "x-client-cert", cert, "x-forwarded-for", "127.0.0.1",
		"x-spiffe-id", paymentsCaller, "principal", paymentsCaller, "idemd-principal", paymentsCaller, "idemd-role", "operator",
		"x-authorization", "Bearer "+s.token, "proxy-authorization", "Bearer "+s.token, "cookie", "authorization=Bearer "+s.token)
	for principal, want := range map[string]string{"": notKnown, stranger: notAllowed, paymentsOperator: notAllowed} {
		var own *devca.Pair
		if principal != "" {
			own = s.certOf(principal)
		}
		conn := s.dial(own, grpc.WithAuthority("localhost"), grpc.WithUserAgent(paymentsCaller))
		_, err := pb.NewIdempotencyServiceClient(conn).Claim(ctx, &pb.ClaimRequest{
			Key: &pb.Key{Namespace: "payments", Id: "order-1"}, AttemptId: []byte("a"),
		})
		if reason(err) != want {
			t.Errorf("%q: %v, want %s", principal, err, want)
		}
	}
}

// A path that is not written as the method's name is is nobody's way in.
func TestPathsThatAreNoMethod(t *testing.T) {
	s := newSecured(t)
	method := pb.IdempotencyService_Claim_FullMethodName
	for _, path := range []string{method[1:], "/" + method, method + "/", "/x" + method, strings.ToLower(method), "*", "/", method + "?x", "/idemd.v1.IdempotencyService%2FClaim"} {
		for _, own := range []*devca.Pair{nil, s.certOf(stranger), s.certOf(paymentsCaller)} {
			if got := s.rawCall(own, path); got == "0" || got == "" {
				t.Errorf("%q: grpc-status %q", path, got)
			}
		}
	}
	if got := s.rawCall(s.certOf(paymentsCaller), method); got != "3" { // its request is empty
		t.Errorf("the method itself: grpc-status %q", got)
	}
	if page, err := s.local().ListRecords(t.Context(), store.ListRequest{Namespace: "payments"}); err != nil || len(page.Records) > 0 {
		t.Errorf("%v, %v", page, err)
	}
}

// rawCall sends a request of a path, and returns the grpc-status, or else what came instead.
func (s *secured) rawCall(own *devca.Pair, path string) string {
	s.Helper()
	raw, err := s.lis.DialContext(s.Context())
	must := func(err error) {
		s.Helper()
		if err != nil {
			s.Fatal(err)
		}
	}
	must(err)
	config := s.tls(own)
	config.NextProtos = []string{"h2"}
	conn := tls.Client(raw, config)
	defer conn.Close()
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(err)
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must(framer.WriteSettings())
	var block bytes.Buffer
	headers := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", path}, {":authority", "localhost"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		must(headers.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	must(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}))
	must(framer.WriteData(1, true, make([]byte, 5)))
	for {
		frame, err := framer.ReadFrame()
		must(err)
		switch f := frame.(type) {
		case *http2.RSTStreamFrame:
			return f.ErrCode.String()
		case *http2.GoAwayFrame:
			return f.ErrCode.String()
		case *http2.MetaHeadersFrame:
			for _, field := range f.RegularFields() {
				if field.Name == "grpc-status" {
					return field.Value
				}
			}
			if f.StreamEnded() {
				return "status " + f.PseudoValue("status")
			}
		}
	}
}

// A client that is given a new token goes on with it, in sessions too, and no caller notices.
func TestClientWithANewToken(t *testing.T) {
	s := newSecured(t)
	first, firstLine, _ := identity.NewToken("claims", time.Time{})
	second, secondLine, _ := identity.NewToken("claims", time.Time{})
	s.change("tokens", firstLine)
	var token atomic.Pointer[string]
	token.Store(&first)
	var sessions atomic.Int64
	opts := append(s.toTheRig(nil), client.BearerToken(func() string { return *token.Load() }),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			sessions.Add(1)
			return streamer(ctx, desc, cc, method, opts...)
		}))
	c, err := client.Dial("localhost:7600", opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	key := func(i int) store.Key { return store.Key{Namespace: "payments", ID: fmt.Sprint(i)} }
	by := func(want int64) {
		t.Helper()
		for i := 0; sessions.Load() < want; i++ {
			grant(t, c, key(i), "a")
		}
	}
	by(1)
	token.Store(&second)
	s.change("tokens", secondLine)
	for i := range 20 {
		grant(t, c, key(i), "a")
	}
	by(2)
	s.change("tokens", s.tokenLine)
	if _, err := c.Lookup(t.Context(), store.LookupRequest{Key: key(0)}); !errors.Is(err, store.ErrUnauthenticated) {
		t.Errorf("with a token that does not count: %v", err)
	}
	if text := s.log.String(); strings.Contains(text, first) || strings.Contains(text, second) {
		t.Error("the log shows a token")
	}
}

// A client whose certificate is replaced in time is never refused: the connection ends with the
// old one.
func TestConnectionsEndWithTheirCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecured(t)
		defer s.close()
		var own atomic.Pointer[devca.Pair]
		renew := func() {
			pair := s.issue(s.ca, devca.Leaf{URIs: []string{paymentsCaller}, Client: true, NotAfter: time.Now().Add(time.Minute)})
			own.Store(&pair)
		}
		renew()
		config := s.tls(nil)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.X509KeyPair(own.Load().Cert, own.Load().Key)
			return &pair, err
		}
		c := client.New(s.dialConfig(config))
		defer c.Close()
		start := time.Now()
		for i := 0; time.Since(start) < 3*time.Minute; i++ {
			if _, err := c.Claim(t.Context(), store.ClaimRequest{Key: store.Key{Namespace: "payments", ID: fmt.Sprint(i)}, AttemptID: "a"}); err != nil {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			time.Sleep(700 * time.Millisecond)
			if i%40 == 0 {
				renew()
			}
		}
	})
}

// A certificate that is replaced is shown by the next connection, and one that is no good by none.
func TestTheServersCertificateIsReplaced(t *testing.T) {
	s := newSecured(t)
	replace := func(ca *devca.CA, leaf devca.Leaf) {
		t.Helper()
		leaf.Server = true
		pair := s.issue(ca, leaf)
		s.write("server-key.pem", string(pair.Key))
		s.change("server.pem", string(pair.Cert))
	}
	shows := func(want string) {
		t.Helper()
		raw, err := s.lis.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		config := s.tls(nil)
		config.ServerName, config.NextProtos = want, []string{"h2"}
		conn := tls.Client(raw, config)
		defer conn.Close()
		if err := conn.Handshake(); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	living := s.as(paymentsCaller)
	claim := func() {
		t.Helper()
		if _, err := askWell(t, living, pb.IdempotencyService_Claim_FullMethodName, "payments"); err != nil {
			t.Error(err)
		}
	}
	claim()
	shows("localhost")
	replace(s.ca, devca.Leaf{DNS: []string{"second"}})
	shows("second")
	replace(s.ca, devca.Leaf{DNS: []string{"third"}, NotAfter: time.Now().Add(-time.Second)})
	shows("second")
	s.change("server.pem", "")
	shows("second")
	replace(s.ca, devca.Leaf{DNS: []string{"fourth"}})
	shows("fourth")
	claim() // on the connection that was there before
}

// Who settled a key is who they are, and not who they say they are.
func TestAuditedActor(t *testing.T) {
	s := newSecured(t)
	key := store.Key{Namespace: "payments", ID: "order-1"}
	grant(t, s.local(), key, "a")
	operator := client.New(s.as(operatorToken))
	defer operator.Close()
	if _, err := operator.ForceRelease(t.Context(), store.ForceReleaseRequest{Key: key, AnyFence: true, Actor: "alice", Reason: "gone"}); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Resolve(t.Context(), store.ResolveRequest{Key: key, AnyFence: true, Actor: operatorToken, Reason: "asked"}); err != nil {
		t.Fatal(err)
	}
	inspection, err := operator.InspectRecord(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	var actors []string
	for _, e := range inspection.Events {
		if e.Actor != "" {
			actors = append(actors, e.Actor)
		}
	}
	slices.Sort(actors)
	if want := []string{operatorToken, operatorToken + " (alice)"}; !slices.Equal(actors, want) {
		t.Errorf("%q, want %q", actors, want)
	}
	if !strings.Contains(s.log.String(), "principal="+operatorToken) {
		t.Errorf("the log does not say who acted:\n%s", s.log)
	}
}

func TestActorThatIsTooLong(t *testing.T) {
	ctx := identity.NewContext(t.Context(), identity.Principal("token:ops"))
	got := actorOf(ctx, strings.Repeat("é", 127))
	if len(got) > store.MaxActorBytes || !strings.HasPrefix(got, "token:ops (éé") || !strings.HasSuffix(got, "é)") {
		t.Errorf("%q", got)
	}
	if got := actorOf(t.Context(), "alice"); got != "alice" {
		t.Errorf("where nobody is told apart: %q", got)
	}
}

func TestOperatorsSeeTheirNamespaces(t *testing.T) {
	s := newSecured(t)
	for principal, want := range map[string][]string{
		paymentsOperator: {"payments"}, otherTenant: {"other"}, operatorToken: {"default", "other", "payments"},
	} {
		c := client.New(s.as(principal))
		list, err := c.ListNamespaces(t.Context())
		if err := errors.Join(err, c.Close()); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, ns := range list {
			names = append(names, ns.Name)
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("%s sees %q", principal, names)
		}
	}
}

// publicTCP listens on loopback, and says that other machines can reach it.
type publicTCP struct{ net.Listener }

func (publicTCP) Addr() net.Addr { return (*publicListener)(nil).Addr() }

func TestAdminListenerWithIdentity(t *testing.T) {
	for _, public := range []bool{false, true} {
		s := newSecured(t)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served, url, addr := make(chan error, 1), "http://", lis.Addr().String()
		if public {
			lis, url = publicTCP{lis}, "https://"
		}
		go func() { served <- s.ServeAdmin(lis) }()
		get := func(page string, own *devca.Pair, token string) (int, string) {
			t.Helper()
			transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.tls(own)}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+addr+page, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(body)
		}
		check := func(page string, own *devca.Pair, token string, want int) {
			t.Helper()
			if code, body := get(page, own, token); code != want || code != http.StatusOK && strings.Contains(body, "idemd_answers") {
				t.Errorf("%s%s: %d, want %d\n%s", url, page, code, want, body)
			}
		}
		check("/healthz", nil, "", http.StatusOK)
		check("/metrics", nil, "", http.StatusUnauthorized)
		check("/metrics", nil, "idemd_x", http.StatusUnauthorized)
		check("/metrics", nil, s.token, http.StatusOK)
		if public {
			check("/metrics", s.certOf(paymentsCaller), "", http.StatusForbidden)
			check("/metrics", s.certOf(paymentsOperator), "", http.StatusForbidden) // it names all namespaces
			check("/metrics", s.certOf(paymentsOperator), "idemd_x", http.StatusUnauthorized)
		}
		begin(t, s.config.Backend, "", "alice", "failed over")
		s.health.floors.look(t.Context())
		tells := func(own *devca.Pair, token string, want bool) { // which namespaces there are
			t.Helper()
			_, body := get("/healthz", own, token)
			if named := strings.Contains(body, "in namespaces default, other, payments:") && strings.Contains(body, "alice"); named != want || !want && !strings.Contains(body, "in 3 namespaces") {
				t.Errorf("/healthz, named %v, want %v: %s", named, want, body)
			}
		}
		tells(nil, "", false)
		tells(nil, "idemd_x", false)
		tells(nil, s.token, true)
		if public {
			tells(s.certOf(paymentsOperator), "", false)
		}
		s.write("policy.yaml", "no policy")
		s.authority.Poll()
		s.authority.Poll()
		if _, body := get("/healthz", nil, ""); !strings.Contains(body, `"notice":"the policy file is no good`) || strings.Contains(body, s.dir) {
			t.Errorf("/healthz: %s", body)
		}
		if _, body := get("/metrics", nil, s.token); !strings.Contains(body, `idemd_file_stale{file="policy"} 1`) || !strings.Contains(body, `idemd_file_stale{file="tls"} 0`) {
			t.Errorf("/metrics: %s", body)
		}
		if err := errors.Join(s.Shutdown(t.Context()), <-served); err != nil {
			t.Error(err)
		}
	}
}

// With TLS and a policy other machines may connect; with one of them they may not.
func TestListenersWithIdentity(t *testing.T) {
	s := newSecured(t)
	load := func(o identity.Options) *identity.Authority {
		a, err := identity.Load(o)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for name, test := range map[string]struct {
		authority *identity.Authority
		may       bool
	}{
		"both":        {s.authority, true},
		"TLS only":    {load(identity.Options{TLSCert: s.path("server.pem"), TLSKey: s.path("server-key.pem")}), false},
		"policy only": {load(identity.Options{Tokens: s.path("tokens"), Policy: s.path("policy.yaml")}), false},
		"nothing":     {nil, false},
	} {
		srv := Server{config: Config{Identity: test.authority}}
		if err := checkListener(&publicListener{}, srv.mayServeAfar()); test.may != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A token that came in plain text from another machine is no secret any more.
func TestTokenInPlainTextFromAfar(t *testing.T) {
	s := newSecured(t)
	for addr, private := range map[net.Addr]bool{
		&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}: false, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}: true, &net.UnixAddr{}: true,
	} {
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: newConnection(addr)})
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+s.token))
		if _, err := s.authority.Authenticate(credentialsOf(ctx)); private != (err == nil) {
			t.Errorf("from %v: %v", addr, err)
		}
	}
	if _, err := s.authority.Authenticate(credentialsOf(t.Context())); err == nil {
		t.Error("from nowhere")
	}
}
