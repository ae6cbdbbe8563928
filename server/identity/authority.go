package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"

	"github.com/idemd/idemd/store"
)

// pollInterval is how often the files are looked at. A change counts with the second look.
const pollInterval = 500 * time.Millisecond

// Options name the files. What is empty is not used.
type Options struct {
	TLSCert, TLSKey string
	TLSClientCA     string   // authorities of clients' certificates
	TrustDomains    []string // of SPIFFE ids that count; none: all
	Tokens          string
	Policy          string

	Logger *slog.Logger     // nil: slog.Default()
	Now    func() time.Time // nil: time.Now
}

// Check refuses options that do not go together.
func (o *Options) Check() error {
	known := o.TLSClientCA != "" || o.Tokens != ""
	switch {
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case o.TLSClientCA != "" && o.TLSCert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case len(o.TrustDomains) > 0 && o.TLSClientCA == "":
		return errors.New("--trust-domain needs --tls-client-ca")
	case known && o.Policy == "":
		return errors.New("--tls-client-ca and --tokens say who somebody is; what they may do, --policy must say")
	case o.Policy != "" && !known:
		return errors.New("--policy needs --tls-client-ca or --tokens: without them nobody is known")
	}
	return nil
}

// Authority says who a caller is and what they may do. A nil one knows nobody, and allows
// everything.
type Authority struct {
	logger  *slog.Logger
	now     func() time.Time
	domains []spiffeid.TrustDomain

	material *watched[*material] // nil: no TLS
	tokens   *watched[*Tokens]   // nil: none
	policy   *watched[*Policy]   // nil: everything is allowed

	authorizer *Authorizer // nil: as policy

	said     handshakes
	paths    map[string]string   // of the files that hold certificates, for the log
	reminded map[string]reminder // by file; only Run has it
}

// Load reads the files. Call Run so that they are read again.
func Load(o Options) (*Authority, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	a := &Authority{
		logger: o.Logger, now: o.Now,
		paths: map[string]string{certFile: o.TLSCert, clientCAFile: o.TLSClientCA}, reminded: map[string]reminder{},
	}
	if a.logger == nil {
		a.logger = slog.Default()
	}
	if a.now == nil {
		a.now = time.Now
	}
	for _, name := range o.TrustDomains {
		domain, err := spiffeid.TrustDomainFromString(name)
		if err != nil || domain.Name() != name {
			return nil, fmt.Errorf("--trust-domain %q is not a name like example.org", name)
		}
		a.domains = append(a.domains, domain)
	}
	return a, a.loadFiles(o)
}

func (a *Authority) loadFiles(o Options) (err error) {
	if o.TLSCert != "" {
		paths := []string{o.TLSCert, o.TLSKey}
		if o.TLSClientCA != "" {
			paths = append(paths, o.TLSClientCA)
		}
		a.material, err = watch(a.logger, "TLS", paths, func(contents [][]byte) (*material, error) { return parseMaterial(contents, a.now()) })
		err = of("--tls-cert, --tls-key, --tls-client-ca", err)
	}
	if err == nil && o.Tokens != "" {
		a.tokens, err = watch(a.logger, "tokens", []string{o.Tokens}, func(contents [][]byte) (*Tokens, error) { return ParseTokens(contents[0]) })
		err = of("--tokens", err)
	}
	if err == nil && a.tokens != nil && o.TLSClientCA == "" && len(a.tokens.now().byDigest) == 0 {
		return fmt.Errorf("--tokens: %s: it holds no token, and without --tls-client-ca nobody is known; idemd token new NAME makes one", o.Tokens)
	}
	if err == nil && o.Policy != "" {
		a.policy, err = watch(a.logger, "policy", []string{o.Policy}, func(contents [][]byte) (*Policy, error) { return ParsePolicy(contents[0]) })
		err = of("--policy", err)
		a.authorizer = &Authorizer{a.policy}
	}
	return err
}

// of says by which flags the files were named that are no good.
func of(flags string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", flags, err)
	}
	return err
}

func watch[T any](logger *slog.Logger, what string, paths []string, parse func([][]byte) (T, error)) (*watched[T], error) {
	w := &watched[T]{what: what, paths: paths, parse: parse, logger: logger}
	return w, w.load()
}

// Encrypts reports whether there is TLS.
func (a *Authority) Encrypts() bool { return a != nil && a.material != nil }

// Identifies reports whether callers are told apart, and only those let in who were granted
// something.
func (a *Authority) Identifies() bool { return a != nil && a.policy != nil }

// Authorizer decides what principals may do; nil if everything is allowed.
func (a *Authority) Authorizer() *Authorizer {
	if a == nil {
		return nil
	}
	return a.authorizer
}

// Run looks at the files until the context ends, and has the log say what of them expires.
func (a *Authority) Run(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.Poll()
			a.remind()
		}
	}
}

// Poll looks at the files once.
func (a *Authority) Poll() {
	for _, w := range a.files() {
		w.poll()
	}
}

// file is a watched one, whatever it holds.
type file interface {
	poll()
	stale() string
}

func (a *Authority) files() map[string]file {
	files := map[string]file{}
	if a.material != nil {
		files["tls"] = a.material
	}
	if a.tokens != nil {
		files["tokens"] = a.tokens
	}
	if a.policy != nil {
		files["policy"] = a.policy
	}
	return files
}

// Stale says for each kind of file (tls, tokens, policy) what is wrong with the one that is
// there, while an earlier one is in force; empty if nothing is.
func (a *Authority) Stale() map[string]string {
	stale := map[string]string{}
	for kind, w := range a.files() {
		stale[kind] = w.stale()
	}
	return stale
}

// Notice is what an operator should see to; empty if there is nothing. It names no file: it may
// be shown to anybody.
func (a *Authority) Notice() string {
	var notices []string
	stale := a.Stale()
	for _, kind := range []string{"tls", "tokens", "policy"} {
		if stale[kind] != "" {
			notices = append(notices, fmt.Sprintf("the %s file is no good, and the one before is in force: see the log", kind))
		}
	}
	for _, e := range a.endings() {
		if problem := e.problem(a.now()); problem != "" {
			notices = append(notices, problem)
		}
	}
	return strings.Join(notices, "; ")
}

// Knows reports whether the policy has something for a principal.
func (a *Authority) Knows(p Principal) bool { return a.Identifies() && a.policy.now().knows(p) }

// Credentials are what somebody brings along.
type Credentials struct {
	// Certificate is that of the connection; nil if there is none.
	Certificate *Certificate
	// Authorization are the values of the header of that name.
	Authorization []string
	// Private reports whether nobody can read along: there is TLS, or the connection does not
	// leave the machine.
	Private bool
}

// OfConnection returns what the connection of a gRPC call brings along.
func OfConnection(info credentials.AuthInfo) Credentials {
	of, ok := info.(connectionInfo)
	return Credentials{Certificate: of.certificate, Private: ok}
}

// OfTLS returns what a connection brings along that a listener with TLSConfig made.
func (a *Authority) OfTLS(state *tls.ConnectionState) Credentials {
	return Credentials{Certificate: a.certificateOf(state), Private: true}
}

// Authenticate returns who somebody is now. A token counts before a certificate and instead of
// it. What is wrong only the cause in the error says, which is for the log.
func (a *Authority) Authenticate(c Credentials) (Principal, error) {
	principal, err := a.authenticate(c)
	if err != nil {
		return "", &store.Error{Sentinel: store.ErrUnauthenticated, Detail: howToAuthenticate, Cause: err}
	}
	return principal, nil
}

const howToAuthenticate = "nothing was done; show a client certificate or a bearer token that counts here"

func (a *Authority) authenticate(c Credentials) (Principal, error) {
	switch {
	case len(c.Authorization) > 0:
		return a.ofToken(c)
	case c.Certificate == nil:
		return "", errors.New("there are no credentials")
	}
	if err := c.Certificate.check(a.material.now().authorities, a.now()); err != nil {
		return "", err
	}
	return c.Certificate.principal(a.domains, a.policy.now())
}

func (a *Authority) ofToken(c Credentials) (Principal, error) {
	if len(c.Authorization) > 1 {
		return "", errors.New("there is more than one authorization")
	}
	scheme, secret, found := strings.Cut(c.Authorization[0], " ")
	switch {
	case !found || !strings.EqualFold(scheme, "Bearer"):
		return "", errors.New("the authorization is no bearer token")
	case !c.Private:
		return "", errors.New("a token came in plain text from another machine; it is no secret any more: replace it")
	case a.tokens == nil:
		return "", errors.New("there are no tokens here (--tokens)")
	}
	return a.tokens.now().find(strings.TrimSpace(secret), a.now())
}
