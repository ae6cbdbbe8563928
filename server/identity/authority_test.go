package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/server/identity/devca"
	"github.com/idemd/idemd/store"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// kit is an Authority over files that the test changes, at a time that the test sets.
type kit struct {
	testing.TB
	*Authority
	dir string
	ca  *devca.CA
	now time.Time
	log bytes.Buffer
}

func newKit(t *testing.T, domains ...string) *kit {
	t.Helper()
	k := &kit{TB: t, dir: t.TempDir(), now: noon}
	k.ca = k.newCA()
	k.write("ca.pem", k.ca.PEM())
	k.serverCert(noon.Add(time.Hour))
	k.write("tokens", nil)
	k.write("policy.yaml", []byte(goodPolicy))
	var err error
	k.Authority, err = Load(Options{
		TLSCert: k.path("server.pem"), TLSKey: k.path("server-key.pem"), TLSClientCA: k.path("ca.pem"), TrustDomains: domains,
		Tokens: k.path("tokens"), Policy: k.path("policy.yaml"),
		Logger: slog.New(slog.NewTextHandler(&k.log, nil)), Now: func() time.Time { return k.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (k *kit) path(name string) string { return filepath.Join(k.dir, name) }

func (k *kit) write(name string, content []byte) {
	k.Helper()
	if err := os.WriteFile(k.path(name), content, 0o600); err != nil {
		k.Fatal(err)
	}
}

func (k *kit) newCA() *devca.CA {
	k.Helper()
	ca, err := devca.New("test", noon.Add(-time.Hour), noon.Add(24*time.Hour))
	if err != nil {
		k.Fatal(err)
	}
	return ca
}

func (k *kit) issue(ca *devca.CA, leaf devca.Leaf) devca.Pair {
	k.Helper()
	if leaf.NotAfter.IsZero() {
		leaf.NotAfter = noon.Add(time.Hour)
	}
	leaf.NotBefore = noon.Add(-time.Hour)
	pair, err := ca.Issue(leaf)
	if err != nil {
		k.Fatal(err)
	}
	return pair
}

func (k *kit) serverCert(until time.Time) {
	k.Helper()
	pair := k.issue(k.ca, devca.Leaf{DNS: []string{"localhost"}, Server: true, NotAfter: until})
	k.write("server.pem", pair.Cert)
	k.write("server-key.pem", pair.Key)
}

// settle has a change of the files seen twice.
func (k *kit) settle() {
	k.Poll()
	k.Poll()
}

// client is the certificate of a client on a connection that was made under the authorities.
func (k *kit) client(leaf devca.Leaf) *Certificate {
	k.Helper()
	leaf.Client = true
	return k.certificate(k.ca, leaf)
}

func (k *kit) certificate(ca *devca.CA, leaf devca.Leaf) *Certificate {
	k.Helper()
	block, _ := pem.Decode(k.issue(ca, leaf).Cert)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		k.Fatal(err)
	}
	return newCertificate([]*x509.Certificate{cert}, nil)
}

// refuses checks that somebody is not known, that they are not told why, and that the log is.
func (k *kit) refuses(c Credentials, why string) {
	k.Helper()
	_, err := k.Authenticate(c)
	var refused *store.Error
	if !errors.As(err, &refused) || refused.Sentinel != store.ErrUnauthenticated || refused.Detail != howToAuthenticate {
		k.Fatalf("%v", err)
	}
	if !strings.Contains(refused.Cause.Error(), why) {
		k.Errorf("the log says %q, want %q", refused.Cause, why)
	}
}

func (k *kit) knows(c Credentials, want Principal) {
	k.Helper()
	if got, err := k.Authenticate(c); err != nil || got != want {
		var refused *store.Error
		_ = errors.As(err, &refused)
		k.Errorf("%q, %v (%+v), want %q", got, err, refused, want)
	}
}

const payments = "spiffe://example.org/payments"

func TestWhoseCertificate(t *testing.T) {
	k := newKit(t, "example.org", "example.net")
	for name, test := range map[string]struct {
		leaf devca.Leaf
		want Principal
		why  string
	}{
		"SPIFFE id":               {devca.Leaf{URIs: []string{payments}}, payments, ""},
		"not in the policy":       {devca.Leaf{URIs: []string{"spiffe://example.net/x"}}, "spiffe://example.net/x", ""},
		"another trust domain":    {devca.Leaf{URIs: []string{"spiffe://example.com/payments"}}, "", "another trust domain"},
		"trust domain as prefix":  {devca.Leaf{URIs: []string{"spiffe://example.org.evil/payments"}}, "", "another trust domain"},
		"two URIs":                {devca.Leaf{URIs: []string{payments, payments + "2"}}, "", "more than one URI"},
		"another URI":             {devca.Leaf{URIs: []string{"https://example.org/payments"}}, "", "scheme"},
		"another URI and DNS":     {devca.Leaf{URIs: []string{"https://example.org/"}, DNS: []string{"batch.example.org"}}, "", "scheme"},
		"SPIFFE id wins over DNS": {devca.Leaf{URIs: []string{payments}, DNS: []string{"batch.example.org"}}, payments, ""},
		"DNS":                     {devca.Leaf{DNS: []string{"batch.example.org"}}, "dns:batch.example.org", ""},
		"DNS in capitals":         {devca.Leaf{DNS: []string{"Batch.Example.ORG"}}, "dns:batch.example.org", ""},
		"DNS not in the policy":   {devca.Leaf{DNS: []string{"x.example.org"}}, "dns:x.example.org", ""},
		"one of two DNS":          {devca.Leaf{DNS: []string{"x.example.org", "batch.example.org"}}, "dns:batch.example.org", ""},
		"none of two DNS":         {devca.Leaf{DNS: []string{"x.example.org", "y.example.org"}}, "", "ambiguous"},
		"a wildcard":              {devca.Leaf{DNS: []string{"*.example.org"}}, "dns:*.example.org", ""}, // never in a policy
		"no name":                 {devca.Leaf{}, "", "no URI and no DNS name"},
	} {
		t.Run(name, func(t *testing.T) {
			k.TB = t
			c := Credentials{Certificate: k.client(test.leaf), Private: true}
			if test.why != "" {
				k.refuses(c, test.why)
			} else {
				k.knows(c, test.want)
			}
		})
	}
	k.TB = t
	k.write("policy.yaml", []byte(goodPolicy+"  - {principal: dns:other.example.org, role: caller, namespaces: [other]}\n"))
	k.settle()
	k.refuses(Credentials{Certificate: k.client(devca.Leaf{DNS: []string{"other.example.org", "batch.example.org"}})}, "ambiguous")
}

// What was verified when the connection was made need not count any more.
func TestCertificatesOnConnectionsThatLiveOn(t *testing.T) {
	k := newKit(t)
	c := Credentials{Certificate: k.client(devca.Leaf{URIs: []string{payments}, NotAfter: noon.Add(time.Minute)})}
	k.knows(c, payments)
	k.now = noon.Add(time.Minute)
	k.refuses(c, "expired at 2026-11-30T12:01:00Z")
	k.now = noon
	k.knows(c, payments)

	other := k.newCA()
	k.write("ca.pem", other.PEM())
	k.settle()
	k.refuses(c, "unknown authority")
	k.write("ca.pem", slices.Concat(other.PEM(), k.ca.PEM()))
	k.settle()
	k.knows(c, payments)

	// Neither a server's certificate nor that of another authority is a client's.
	k.refuses(Credentials{Certificate: k.certificate(k.ca, devca.Leaf{URIs: []string{payments}, Server: true})}, "usage")
	k.refuses(Credentials{Certificate: k.certificate(k.newCA(), devca.Leaf{URIs: []string{payments}, Client: true})}, "unknown authority")
}

func TestBearerTokens(t *testing.T) {
	k := newKit(t)
	secret, line, _ := NewToken("ops", noon.Add(time.Minute))
	k.write("tokens", []byte(line))
	k.settle()
	token := func(values ...string) Credentials { return Credentials{Authorization: values, Private: true} }
	k.knows(token("Bearer "+secret), "token:ops")
	k.knows(token("bearer  "+secret), "token:ops")
	k.refuses(token("Bearer "+secret, "Bearer "+secret), "more than one")
	k.refuses(token(secret), "no bearer")
	k.refuses(token("Basic "+secret), "no bearer")
	k.refuses(token(""), "no bearer")
	k.refuses(token("Bearer "), "not known")
	k.refuses(Credentials{Authorization: []string{"Bearer " + secret}}, "plain text")
	k.refuses(Credentials{}, "no credentials")

	// The token counts, and never what the certificate would add.
	both := token("Bearer " + secret)
	both.Certificate = k.client(devca.Leaf{URIs: []string{payments}})
	k.knows(both, "token:ops")
	k.now = noon.Add(time.Minute)
	k.refuses(both, "expired")
	k.refuses(token("Bearer "+secret), "token of ops expired")
	both.Authorization = []string{"Bearer idemd_unknown"}
	k.refuses(both, "not known")
	both.Authorization = nil
	k.knows(both, payments)
}

// Each file goes from good to bad and to good again.
func TestFilesAreReadAgain(t *testing.T) {
	k := newKit(t)
	secret, line, _ := NewToken("ops", time.Time{})
	client := Credentials{Certificate: k.client(devca.Leaf{URIs: []string{payments}})}
	servedUntil := func() time.Time { return k.material.now().pair.Leaf.NotAfter }
	var first time.Time
	otherKey := k.issue(k.ca, devca.Leaf{Server: true}).Key

	for name, test := range map[string]struct {
		kind, file string
		bad        map[string][]byte
		unchanged  func() bool
		good       func()
		changed    func() bool
	}{
		"certificate": {
			kind: "tls", file: "server.pem",
			bad: map[string][]byte{"not PEM": []byte("x"), "empty": nil, "of another key": k.issue(k.ca, devca.Leaf{Server: true}).Cert,
				"expired": k.issue(k.ca, devca.Leaf{Server: true, NotAfter: noon}).Cert},
			unchanged: func() bool { return servedUntil().Equal(first) },
			good:      func() { k.serverCert(noon.Add(2 * time.Hour)) },
			changed:   func() bool { return servedUntil().Equal(noon.Add(2 * time.Hour)) },
		},
		"key": {
			kind: "tls", file: "server-key.pem", bad: map[string][]byte{"of another certificate": otherKey, "not PEM": []byte("x")},
			unchanged: func() bool { return true }, good: func() { k.serverCert(noon.Add(3 * time.Hour)) },
			changed: func() bool { return servedUntil().Equal(noon.Add(3 * time.Hour)) },
		},
		"authorities": {
			kind: "tls", file: "ca.pem", bad: map[string][]byte{"not PEM": []byte("x"), "a key": otherKey},
			unchanged: func() bool { _, err := k.Authenticate(client); return err == nil },
			good:      func() { k.write("ca.pem", k.newCA().PEM()) },
			changed:   func() bool { _, err := k.Authenticate(client); return err != nil },
		},
		"tokens": {
			kind: "tokens", file: "tokens", bad: map[string][]byte{"a token": []byte(secret), "a half line": []byte(line[:40])},
			unchanged: func() bool { return len(k.tokens.now().byDigest) == 0 },
			good:      func() { k.write("tokens", []byte(line)) },
			changed:   func() bool { return len(k.tokens.now().byDigest) == 1 },
		},
		"policy": {
			kind: "policy", file: "policy.yaml", bad: map[string][]byte{"a half file": []byte(goodPolicy[:60]), "empty": nil, "unknown role": []byte(strings.Replace(goodPolicy, "caller", "king", 1))},
			unchanged: func() bool { return k.Authorizer().Authorize(payments, Caller, "refunds") == nil },
			good:      func() { k.write("policy.yaml", []byte(strings.Replace(goodPolicy, ", refunds", "", 1))) },
			changed:   func() bool { return k.Authorizer().Authorize(payments, Caller, "refunds") != nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			k.TB = t
			first = servedUntil()
			original, err := os.ReadFile(k.path(test.file))
			if err != nil {
				t.Fatal(err)
			}
			test.bad["gone"] = nil
			for what, content := range test.bad {
				k.log.Reset()
				k.write(test.file, content)
				if what == "gone" {
					_ = os.Remove(k.path(test.file))
				}
				for range 5 {
					k.Poll()
				}
				if lines := strings.Count(k.log.String(), "stays in force"); lines != 1 || !strings.Contains(k.log.String(), test.file) {
					t.Errorf("%s: %d lines in the log\n%s", what, lines, &k.log)
				}
				if !test.unchanged() {
					t.Errorf("%s: the one before is not in force", what)
				}
				if k.Stale()[test.kind] == "" || !strings.Contains(k.Notice(), test.kind) || strings.Contains(k.Notice(), k.dir) {
					t.Errorf("%s: stale %q, notice %q", what, k.Stale(), k.Notice())
				}
				for _, unsaid := range []string{secret, strings.Fields(line)[1][7:47]} {
					if strings.Contains(k.log.String()+k.Notice(), unsaid) {
						t.Errorf("%s: the log shows %s\n%s", what, unsaid, &k.log)
					}
				}
				k.write(test.file, original)
				k.settle()
				if k.Stale()[test.kind] != "" || k.Notice() != "" {
					t.Errorf("after %s: stale %q, notice %q", what, k.Stale(), k.Notice())
				}
			}
			test.good()
			k.settle()
			if !test.changed() || k.Notice() != "" {
				t.Errorf("the new one is not in force: %q", k.Notice())
			}
		})
	}
}

// A file that is being written is not taken for one.
func TestHalfWrittenFiles(t *testing.T) {
	k := newKit(t)
	k.write("policy.yaml", []byte("grants: []"))
	k.Poll()
	if err := k.Authorizer().Authorize(payments, Caller, "payments"); err != nil {
		t.Errorf("a file counts that was seen once: %v", err)
	}
	k.write("policy.yaml", []byte(goodPolicy))
	k.settle()
	if k.log.Len() > 0 || k.Notice() != "" {
		t.Errorf("%s%s", &k.log, k.Notice())
	}
}

// Kubernetes replaces the files of a volume by one symbolic link.
func TestSymbolicLinks(t *testing.T) {
	k := newKit(t)
	volume := t.TempDir()
	put := func(name string, until time.Time) {
		dir := filepath.Join(volume, name)
		pair := k.issue(k.ca, devca.Leaf{Server: true, NotAfter: until})
		err := errors.Join(os.Mkdir(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "tls.crt"), pair.Cert, 0o600), os.WriteFile(filepath.Join(dir, "tls.key"), pair.Key, 0o600),
			os.Symlink(name, filepath.Join(volume, "..new")), os.Rename(filepath.Join(volume, "..new"), filepath.Join(volume, "..data")))
		if err != nil {
			t.Fatal(err)
		}
	}
	put("..1", noon.Add(time.Hour))
	a, err := Load(Options{
		TLSCert: filepath.Join(volume, "..data", "tls.crt"), TLSKey: filepath.Join(volume, "..data", "tls.key"),
		Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return noon },
	})
	if err != nil {
		t.Fatal(err)
	}
	put("..2", noon.Add(2*time.Hour))
	a.Poll()
	a.Poll()
	if until := a.material.now().pair.Leaf.NotAfter; !until.Equal(noon.Add(2 * time.Hour)) {
		t.Error(until)
	}
}

// A certificate that is not valid yet is in force once it is, and one that has expired is told.
func TestCertificatesAndTime(t *testing.T) {
	k := newKit(t)
	k.now = noon.Add(-2 * time.Hour) // before everything
	k.serverCert(noon.Add(5 * time.Hour))
	k.settle()
	if k.Stale()["tls"] == "" {
		t.Fatal("a certificate of tomorrow is in force")
	}
	k.now = noon
	k.Poll()
	if until := k.material.now().pair.Leaf.NotAfter; !until.Equal(noon.Add(5*time.Hour)) || k.Notice() != "" {
		t.Errorf("%v, %q", until, k.Notice())
	}
	k.now = noon.Add(5 * time.Hour)
	if !strings.Contains(k.Notice(), "expired") {
		t.Errorf("%q", k.Notice())
	}
}

func TestOptionsThatDoNotGoTogether(t *testing.T) {
	for _, o := range []Options{
		{TLSCert: "x"}, {TLSKey: "x"}, {TLSClientCA: "x", Policy: "x"}, {TLSCert: "x", TLSKey: "x", TLSClientCA: "x"},
		{Tokens: "x"}, {Policy: "x"}, {TrustDomains: []string{"x"}}, {TLSCert: "x", TLSKey: "x", Policy: "x"},
	} {
		if err := o.Check(); err == nil || !strings.HasPrefix(err.Error(), "--") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	k := newKit(t)
	for _, domain := range []string{"", "spiffe://example.org", "example.org/", "Example.org"} {
		_, err := Load(Options{TLSCert: k.path("server.pem"), TLSKey: k.path("server-key.pem"), TLSClientCA: k.path("ca.pem"), Policy: k.path("policy.yaml"), TrustDomains: []string{domain}})
		if err == nil || !strings.Contains(err.Error(), "--trust-domain") {
			t.Errorf("%q: %v", domain, err)
		}
	}
	if _, err := Load(Options{TLSCert: k.path("policy.yaml"), TLSKey: k.path("server-key.pem")}); err == nil || !strings.Contains(err.Error(), "policy.yaml") {
		t.Errorf("a file that is no certificate: %v", err)
	}
}

// An empty file of tokens is no way to be known, but the last one that is taken out does not count
// any more.
func TestWithoutAToken(t *testing.T) {
	k := newKit(t)
	secret, line, _ := NewToken("ops", time.Time{})
	only := Options{Tokens: k.path("tokens"), Policy: k.path("policy.yaml"), Now: func() time.Time { return noon }}
	for _, text := range []string{"", "\n# nobody yet\n"} {
		k.write("tokens", []byte(text))
		if _, err := Load(only); err == nil || !strings.Contains(err.Error(), only.Tokens) || !strings.Contains(err.Error(), "no token") {
			t.Errorf("%q: %v", text, err)
		}
	}
	k.write("tokens", []byte(line))
	a, err := Load(only)
	if err != nil {
		t.Fatal(err)
	}
	shown := Credentials{Authorization: []string{"Bearer " + secret}, Private: true}
	if _, err := a.Authenticate(shown); err != nil {
		t.Fatal(err)
	}
	k.write("tokens", nil)
	a.Poll()
	a.Poll()
	if _, err := a.Authenticate(shown); err == nil || a.Stale()["tokens"] != "" {
		t.Errorf("the last token was taken out, and counts: %v; %q", err, a.Stale())
	}
}

// A token is replaced under its name while the server runs: both count while both stand in the file.
func TestATokenIsRotated(t *testing.T) {
	k := newKit(t)
	before, beforeLine, _ := NewToken("ops", time.Time{})
	after, afterLine, _ := NewToken("ops", time.Time{})
	shown := func(secret string) Credentials {
		return Credentials{Authorization: []string{"Bearer " + secret}, Private: true}
	}
	for _, step := range []struct {
		lines        []string
		known, other []string
	}{
		{[]string{beforeLine}, []string{before}, []string{after}},
		{[]string{beforeLine, afterLine}, []string{before, after}, nil},
		{[]string{afterLine}, []string{after}, []string{before}},
	} {
		k.write("tokens", []byte(strings.Join(step.lines, "\n")))
		k.settle()
		if stale := k.Stale()["tokens"]; stale != "" {
			t.Fatal(stale)
		}
		for _, secret := range step.known {
			k.knows(shown(secret), "token:ops")
		}
		for _, secret := range step.other {
			k.refuses(shown(secret), "not known")
		}
	}
}
