package pgfault

import (
	"slices"

	"github.com/jackc/pgx/v5/pgproto3"
)

// DropParameter keeps a run-time parameter of connections that begin from now on from the server, which does not
// know it.
func (p *Proxy) DropParameter(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped = append(p.dropped, name)
}

// forwardStartup is what the server gets of the client's startup message.
func (p *Proxy) forwardStartup(raw rawMessage) (encoder, error) {
	var m pgproto3.StartupMessage
	if err := m.Decode(raw[4:]); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range m.Parameters {
		if slices.Contains(p.dropped, name) {
			delete(m.Parameters, name)
		}
	}
	return &m, nil
}
