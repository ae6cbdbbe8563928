package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/idemd/idemd/server/identity/devca"
	"github.com/idemd/idemd/store/sqlstore"
)

// devCertsLife is how long the certificates are valid.
const devCertsLife = 30 * 24 * time.Hour

// devCertsCmd makes an authority, certificates and a policy to try things with.
type devCertsCmd struct {
	Dir         string   `arg:"" help:"Directory for them, made if it does not exist."`
	Host        []string `placeholder:"NAME|IP" help:"The server's certificate is for this as well as localhost. May be repeated."`
	Region      []string `placeholder:"NAME" help:"Make a certificate for the servers of a region, who are one another's peers. May be repeated."`
	TrustDomain string   `default:"dev.idemd" placeholder:"NAME" help:"Of the SPIFFE ids (${default})."`
}

// Run is called by kong.
func (c *devCertsCmd) Run(s *session) error {
	for _, name := range c.Region {
		if err := sqlstore.CheckRegion(name); err != nil {
			return usageError("--%w", err)
		}
	}
	if domain, err := spiffeid.TrustDomainFromString(c.TrustDomain); err != nil || domain.Name() != c.TrustDomain {
		return usageError("--trust-domain %q is not a name like dev.idemd", c.TrustDomain)
	}
	until := time.Now().Add(devCertsLife).Truncate(time.Second)
	files, err := c.make(until)
	if err != nil {
		return err
	}
	if err := writeNew(c.Dir, files); err != nil {
		return err
	}
	return c.tell(s, until)
}

// newFile is a file to be written.
type newFile struct {
	name    string
	content []byte
	secret  bool
}

// make makes all that is to be written. The authority's key is not kept: nobody makes more.
func (c *devCertsCmd) make(until time.Time) ([]newFile, error) {
	from := time.Now().Add(-time.Minute) // clocks differ
	ca, err := devca.New("idemd dev-certs", from, until)
	if err != nil {
		return nil, err
	}
	files := []newFile{{name: "ca.pem", content: ca.PEM()}, {name: "policy.yaml", content: c.policy()}}
	for name, leaf := range c.leaves() {
		leaf.NotBefore, leaf.NotAfter = from, until
		pair, err := ca.Issue(leaf)
		if err != nil {
			return nil, err
		}
		files = append(files,
			newFile{name: name + ".pem", content: pair.Cert},
			newFile{name: name + "-key.pem", content: pair.Key, secret: true})
	}
	return files, nil
}

func (c *devCertsCmd) leaves() map[string]devca.Leaf {
	server := devca.Leaf{
		URIs: []string{c.id("server")}, DNS: []string{"localhost"},
		IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, Server: true,
	}
	for _, host := range c.Host {
		if ip := net.ParseIP(host); ip != nil {
			server.IPs = append(server.IPs, ip)
		} else {
			server.DNS = append(server.DNS, host)
		}
	}
	leaves := map[string]devca.Leaf{
		"server":   server,
		"caller":   {URIs: []string{c.id("caller")}, Client: true},
		"operator": {URIs: []string{c.id("operator")}, Client: true},
	}
	for _, region := range c.Region {
		of := server
		of.URIs, of.Client = []string{c.id("region/" + region)}, true
		leaves["region-"+region] = of
	}
	return leaves
}

func (c *devCertsCmd) id(path string) string { return "spiffe://" + c.TrustDomain + "/" + path }

func (c *devCertsCmd) policy() []byte {
	var text strings.Builder
	text.WriteString("grants:\n")
	for _, role := range []string{"caller", "operator"} {
		fmt.Fprintf(&text, "  - principal: %s\n    role: %s\n    namespaces: [\"*\"]\n", c.id(role), role)
	}
	for _, region := range c.Region {
		fmt.Fprintf(&text, "  - principal: %s\n    role: peer\n", c.id("region/"+region))
	}
	return []byte(text.String())
}

// writeNew writes files into a directory that has none of them.
func writeNew(dir string, files []newFile) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, file := range files {
		path := filepath.Join(dir, file.name)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there already, and nothing is overwritten: choose another directory", path)
		}
	}
	for _, file := range files {
		mode := fs.FileMode(0o644)
		if file.secret {
			mode = 0o600
		}
		if err := writeExclusively(filepath.Join(dir, file.name), file.content, mode); err != nil {
			return err
		}
	}
	return nil
}

func writeExclusively(path string, content []byte, mode fs.FileMode) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// tell says what was made and how it is used.
func (c *devCertsCmd) tell(s *session, until time.Time) error {
	file := func(name string) string { return filepath.Join(c.Dir, name) }
	serve := func(name string) []string {
		return []string{"--tls-cert", file(name + ".pem"), "--tls-key", file(name + "-key.pem"), "--tls-client-ca", file("ca.pem"), "--policy", file("policy.yaml")}
	}
	as := func(name string) []string {
		return []string{"--ca", file("ca.pem"), "--cert", file(name + ".pem"), "--key", file(name + "-key.pem")}
	}
	p := &page{}
	p.line("throw-away certificates are in %s", c.Dir)
	p.field("valid until", until.UTC().Format(time.RFC3339))
	p.line("serve with them:")
	p.line("  %s", s.command(append([]string{"serve"}, serve("server")...)...))
	for _, region := range c.Region {
		p.line("in the region %s, with its --topology:", region)
		p.line("  %s", s.command(append([]string{"serve", "--region", region}, serve("region-"+region)...)...))
	}
	p.line("then, as a caller:")
	p.line("  %s", s.command(append([]string{"claim", "--id", "order-1001"}, as("caller")...)...))
	p.line("and as an operator:")
	p.line("  %s", s.command(append([]string{"namespace", "list"}, as("operator")...)...))
	return p.print(s.stdout)
}
