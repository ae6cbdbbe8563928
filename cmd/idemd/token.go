package main

import (
	"fmt"
	"time"

	"github.com/idemd/idemd/server/identity"
)

// tokenCmd makes bearer tokens.
type tokenCmd struct {
	New tokenNewCmd `cmd:"" help:"Draw a token, and show it once. To rotate one, draw another under its name, add the line, give callers the new token, and take the old line out."`
}

// tokenNewCmd draws a token. What goes to standard output is the token alone, so that it can go
// into a file that nobody else reads; what goes to standard error is fit for the file of --tokens.
type tokenNewCmd struct {
	Name    string `arg:"" help:"Its name; the principal is token:NAME."`
	Expires span   `placeholder:"SPAN" help:"How long it counts (for ever)."`
}

// Run is called by kong.
func (c *tokenNewCmd) Run(s *session) error {
	var notAfter time.Time
	if c.Expires > 0 {
		notAfter = time.Now().Add(time.Duration(c.Expires))
	}
	secret, line, err := identity.NewToken(c.Name, notAfter)
	if err != nil {
		return usageError("%w", err)
	}
	if _, err := fmt.Fprintln(s.stdout, secret); err != nil {
		return unwritten(err)
	}
	fmt.Fprintf(s.stderr, "# The token is shown this once. For the file of serve --tokens, beside the line of one that it replaces until no caller shows that:\n%s\n", line)
	return nil
}
