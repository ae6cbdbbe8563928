package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/identity"
)

// identityFlags say how a server is known, who its callers are and what they may do.
type identityFlags struct {
	TLSCert     string   `name:"tls-cert" placeholder:"FILE" help:"Serve with TLS: the certificate, in PEM. This and the next four are read again when they change."`
	TLSKey      string   `name:"tls-key" placeholder:"FILE" help:"The key of --tls-cert."`
	TLSClientCA string   `name:"tls-client-ca" placeholder:"FILE" help:"Know callers by certificates of these authorities."`
	Tokens      string   `placeholder:"FILE" help:"Know callers by bearer tokens: lines that idemd token new prints."`
	Policy      string   `placeholder:"FILE" help:"What callers may do, in YAML. Who is not in it may do nothing."`
	TrustDomain []string `placeholder:"NAME" help:"With --tls-client-ca: SPIFFE ids of other trust domains do not count. May be repeated."`
}

func (f *identityFlags) options() identity.Options {
	return identity.Options{
		TLSCert: f.TLSCert, TLSKey: f.TLSKey, TLSClientCA: f.TLSClientCA,
		Tokens: f.Tokens, Policy: f.Policy, TrustDomains: f.TrustDomain,
	}
}

// given reports whether any of them is.
func (f *identityFlags) given() bool {
	return f.TLSCert != "" || f.TLSKey != "" || f.TLSClientCA != "" || f.Tokens != "" || f.Policy != "" || len(f.TrustDomain) > 0
}

// secure reports whether they are enough for other machines to connect.
func (f *identityFlags) secure() bool { return f.TLSCert != "" && f.Policy != "" }

// load reads the files; it returns nil if none is given.
func (n *node) loadIdentity(c *serveCmd) (err error) {
	options := c.options()
	if err := options.Check(); err != nil {
		return usageError("%w", err)
	}
	if !c.given() {
		return nil
	}
	options.Logger = n.logger
	n.identity, err = identity.Load(options)
	return err
}

// exposure is what is to be feared where other machines can connect; empty if nothing is.
func (f *identityFlags) exposure() string {
	switch {
	case f.secure():
		return ""
	case f.TLSCert != "":
		return "without a policy: whoever connects can read, claim and complete every key"
	case f.Policy != "":
		return "in plain text: whoever listens can read every key. Tokens are not taken from there"
	default:
		return "in plain text and without a password: whoever connects can read, claim and complete every key"
	}
}

// credentialFlags are what a command shows to a server.
type credentialFlags struct {
	CA        string `name:"ca" placeholder:"FILE" help:"Use TLS: the authorities of the server's certificate, in PEM."`
	Cert      string `placeholder:"FILE" help:"With --ca: your certificate, in PEM."`
	Key       string `placeholder:"FILE" help:"The key of --cert."`
	TokenFile string `placeholder:"FILE" help:"Your bearer token, alone in a file."`
}

// credentialArgs are the flags that were given.
func (f *credentialFlags) credentialArgs() (args []string) {
	for _, flag := range [][2]string{{"--ca", f.CA}, {"--cert", f.Cert}, {"--key", f.Key}, {"--token-file", f.TokenFile}} {
		if flag[1] != "" {
			args = append(args, flag[0], flag[1])
		}
	}
	return args
}

// dialOptions are those of a connection to an address that is well-formed.
func (f *credentialFlags) dialOptions(addr string) ([]grpc.DialOption, error) {
	transport := grpc.WithTransportCredentials(insecure.NewCredentials())
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return nil, usageError("--cert and the file of its key, --key (of run: --cert-key), go together")
	case f.CA == "" && f.Cert != "":
		return nil, usageError("--cert and --key need --ca: the authorities of the server's certificate")
	case f.CA == "" && f.TokenFile != "" && errors.Is(server.CheckListenAddr(addr, false), server.ErrInsecureAddress):
		return nil, usageError("--token-file: a token is not sent in plain text to another machine; use TLS (--ca)")
	case f.CA != "":
		var err error
		if transport, err = client.TLSFiles(f.CA, f.Cert, f.Key); err != nil {
			return nil, usageError("--ca, --cert, --key: %w", err)
		}
	}
	if f.TokenFile == "" {
		return []grpc.DialOption{transport}, nil
	}
	token, err := readToken(f.TokenFile)
	if err != nil {
		return nil, err
	}
	return []grpc.DialOption{transport, client.BearerToken(func() string { return token })}, nil
}

// readToken reads the one line of a file. No error shows it.
func readToken(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", usageError("--token-file: %w", err)
	}
	fields := strings.Fields(string(text))
	if len(fields) != 1 {
		return "", usageError("--token-file %s: it holds %d words, and must hold one token and nothing else", path, len(fields))
	}
	return fields[0], nil
}

// trouble is what is known of a connection over which nobody answered; empty if it is nothing.
func (f *credentialFlags) trouble(message string) string {
	if at := strings.Index(message, "the certificate in "); at >= 0 { // one's own; the server may not be heard on it
		return "; TLS: " + strings.TrimSuffix(message[at:], `"`)
	}
	for _, mark := range []string{"authentication handshake failed: ", "tls: ", "x509: "} {
		if _, reason, found := strings.Cut(message, mark); found {
			return fmt.Sprintf("; TLS: %s", strings.TrimSuffix(reason, `"`))
		}
	}
	switch {
	case !strings.Contains(message, "server preface") && !strings.HasPrefix(message, "write tcp"): // it was closed before anything was said
		return ""
	case f.CA == "":
		return "; if it serves with TLS, --ca is missing"
	}
	return "; it closed the connection after the handshake of TLS: it has no room for more, or it is no idemd"
}
