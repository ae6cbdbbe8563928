package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/server/identity/devca"
)

const day = 24 * time.Hour

// lastingKit is a kit whose server's certificate and authority end at such times after noon; both began
// a hundred days ago.
func lastingKit(t *testing.T, server, authority time.Duration) *kit {
	t.Helper()
	k := newKit(t)
	k.write("ca.pem", k.authority(authority))
	k.certificateFor(server)
	k.settle()
	k.log.Reset()
	return k
}

// authority makes the kit's authority anew and returns its certificate.
func (k *kit) authority(until time.Duration) []byte {
	k.Helper()
	ca, err := devca.New("test", noon.Add(-100*day), noon.Add(until))
	if err != nil {
		k.Fatal(err)
	}
	k.ca = ca
	return ca.PEM()
}

func (k *kit) certificateFor(until time.Duration) {
	k.Helper()
	pair, err := k.ca.Issue(devca.Leaf{DNS: []string{"localhost"}, Server: true, Client: true, NotBefore: noon.Add(-100 * day), NotAfter: noon.Add(until)})
	if err != nil {
		k.Fatal(err)
	}
	k.write("server.pem", pair.Cert)
	k.write("server-key.pem", pair.Key)
}

// says checks that the notice has all of the words, or is empty if there are none.
func (k *kit) says(words ...string) {
	k.Helper()
	notice := k.Notice()
	if len(words) == 0 && notice != "" {
		k.Errorf("at %v: %q, want nothing", k.now, notice)
	}
	for _, word := range words {
		if !strings.Contains(notice, word) {
			k.Errorf("at %v: %q lacks %q", k.now, notice, word)
		}
	}
}

// A certificate that will expire is told of a week before, and so is the authority of others'.
func TestCertificatesThatWillExpire(t *testing.T) {
	k := lastingKit(t, 30*day, 60*day)
	k.now = noon.Add(23*day - 1)
	k.says()
	k.now = noon.Add(23 * day)
	k.says("the certificate of this server in --tls-cert expires at 2026-12-30T12:00:00Z", "--tls-cert")
	k.now = noon.Add(30 * day)
	k.says("the certificate of this server in --tls-cert expired at 2026-12-30T12:00:00Z")
	k.now = noon.Add(53 * day)
	k.says("the authority in --tls-client-ca expires at 2027-01-29T12:00:00Z")
	k.now = noon.Add(60 * day)
	k.says("the authority in --tls-client-ca expired at 2027-01-29T12:00:00Z")
	k.now = noon.Add(600 * day)
	k.says("the certificate of this server in --tls-cert expired at", "the authority in --tls-client-ca expired at")
	for _, hidden := range []string{k.dir, "server.pem"} {
		if strings.Contains(k.Notice(), hidden) {
			t.Errorf("anybody is told %q: %q", hidden, k.Notice())
		}
	}
	k.now = noon.Add(-101 * day)
	k.says("the certificate of this server in --tls-cert is not valid before 2026-08-22T12:00:00Z")
}

// One that lives for less than a month is replaced in less than a week before its end: it is told of
// in the last quarter of its life.
func TestShortLivedCertificatesThatWillExpire(t *testing.T) {
	k := newKit(t)
	k.write("ca.pem", k.authority(60*day))
	pair, err := k.ca.Issue(devca.Leaf{DNS: []string{"localhost"}, Server: true, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	k.write("server.pem", pair.Cert)
	k.write("server-key.pem", pair.Key)
	k.settle()
	k.now = noon.Add(30*time.Minute - 1)
	k.says()
	k.now = noon.Add(30 * time.Minute)
	k.says("expires at 2026-11-30T13:00:00Z")
}

// What stands above a server's certificate in its file counts as that does.
func TestCertificatesAboveThatWillExpire(t *testing.T) {
	k := newKit(t)
	root := signed(t, nil, but(authorityOf("root"), lives(90*day)))
	between := signed(t, root, but(authorityOf("between"), lives(8*day)))
	leaf := signed(t, between, but(serverOf("localhost"), lives(30*day)))
	key, err := x509.MarshalPKCS8PrivateKey(leaf.key)
	if err != nil {
		t.Fatal(err)
	}
	k.write("server-key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	k.write("server.pem", append(leaf.pem(), between.pem()...))
	k.write("ca.pem", root.pem())
	k.settle()
	k.says()
	k.now = noon.Add(2 * day)
	k.says("a certificate above that of this server", "--tls-cert", "expires at 2026-12-08T12:00:00Z")
	if got := k.Expiries(); !got["tls-cert"].Equal(noon.Add(8*day)) || !got["tls-client-ca"].Equal(noon.Add(90*day)) || len(got) != 2 {
		t.Errorf("%v", got)
	}

	k.write("server.pem", append(leaf.pem(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")})...))
	k.settle()
	if !strings.Contains(k.Stale()["tls"], "certificate 2") {
		t.Errorf("a file that no caller can read is in force: %q", k.Stale()["tls"])
	}
}

func lives(until time.Duration) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = noon.Add(-100*day), noon.Add(until) }
}

// Of several authorities the next to expire counts. One that has expired stays told of for a week,
// and then no longer hides the others.
func TestSeveralAuthoritiesThatWillExpire(t *testing.T) {
	k := lastingKit(t, 300*day, 300*day)
	k.write("ca.pem", append(append(k.authority(90*day), k.authority(10*day)...), k.authority(200*day)...))
	k.settle()
	for at, want := range map[time.Duration]time.Duration{0: 10, 10 * day: 10, 17*day - 1: 10, 17 * day: 90, 97 * day: 200, 500 * day: 200} {
		k.now = noon.Add(at)
		if got := k.Expiries()["tls-client-ca"]; !got.Equal(noon.Add(want * day)) {
			t.Errorf("after %v it is %v, want %v", at, got, noon.Add(want*day))
		}
	}
	k.now = noon.Add(10 * day)
	k.says("an authority in --tls-client-ca expired at 2026-12-10T12:00:00Z")
	k.now = noon.Add(20 * day)
	k.says()
}

// The log warns from a week before, calls it an error from a day before, and repeats neither within
// a day.
func TestTheLogOfCertificatesThatWillExpire(t *testing.T) {
	k := lastingKit(t, 10*day, 60*day)
	for k.now = noon; !k.now.After(noon.Add(12 * day)); k.now = k.now.Add(time.Hour) {
		k.remind()
	}
	warnings, errs := strings.Count(k.log.String(), "level=WARN"), strings.Count(k.log.String(), "level=ERROR")
	if warnings != 6 || errs != 4 { // 7 to 2 days before; 1 day before, at its end, and the two days after
		t.Errorf("%d warnings, %d errors:\n%s", warnings, errs, &k.log)
	}
	for _, want := range []string{"expires at 2026-12-10T12:00:00Z", "expired at 2026-12-10T12:00:00Z", k.path("server.pem")} {
		if !strings.Contains(k.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &k.log)
		}
	}
}

// A new certificate ends what was said of the old one, and is told of by itself.
func TestTheLogOfACertificateThatIsReplaced(t *testing.T) {
	k := lastingKit(t, 2*day, 60*day)
	k.remind()
	k.remind()
	replaced := func(until time.Duration, lines int) {
		t.Helper()
		k.certificateFor(until)
		k.settle()
		k.log.Reset()
		k.remind()
		k.remind()
		if got := strings.Count(k.log.String(), "level=WARN"); got != lines {
			t.Errorf("until %v: %d lines, want %d\n%s", until, got, lines, &k.log)
		}
	}
	if got := strings.Count(k.log.String(), "level=WARN"); got != 1 {
		t.Errorf("%d lines:\n%s", got, &k.log)
	}
	replaced(3*day, 1)
	replaced(30*day, 0)
	k.says()
}

// logLines is a log that is read while it is written.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Run looks by itself.
func TestCertificatesThatExpireWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t)
		start := time.Now()
		ca, err := devca.New("test", start.Add(-100*day), start.Add(60*day))
		if err != nil {
			t.Fatal(err)
		}
		pair, err := ca.Issue(devca.Leaf{DNS: []string{"localhost"}, Server: true, NotBefore: start.Add(-100 * day), NotAfter: start.Add(7*day + 10*time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		k.write("server.pem", pair.Cert)
		k.write("server-key.pem", pair.Key)
		var log logLines
		a, err := Load(Options{TLSCert: k.path("server.pem"), TLSKey: k.path("server-key.pem"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		go a.Run(t.Context())
		after := func(minutes time.Duration, lines int) {
			t.Helper()
			time.Sleep(time.Until(start.Add(minutes * time.Minute)))
			synctest.Wait()
			if got := strings.Count(log.String(), "level=WARN"); got != lines {
				t.Errorf("after %d min there are %d lines, want %d:\n%s", minutes, got, lines, log.String())
			}
		}
		after(9, 0)
		after(11, 1)
	})
}
