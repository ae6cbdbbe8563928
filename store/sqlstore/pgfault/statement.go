package pgfault

import (
	"regexp"

	"github.com/jackc/pgx/v5/pgproto3"
)

// statement is a text that the client sent.
type statement struct {
	text string // which rules match
	sent string // what the server saw in its place
	tag  string // replaces the server's command tag, unless empty
}

// nonsense fails on every server in every state, and aborts the transaction that is open.
const nonsense = "pgfault"

// ownName is the name of the proxy's own prepared statement and portal.
const ownName = "pgfault"

var commits = regexp.MustCompile(`(?i)^\s*(commit|end)\b`)

// query is the simple protocol: one text, all of it answered at once.
func (s *session) query(m message) error {
	var q pgproto3.Query
	if err := q.Decode(m.body); err != nil {
		return err
	}
	st := s.proxy.rewrite(q.String)
	s.tag = st.tag
	send := func(text string) func() error {
		return func() error { return s.exchange(ready, &pgproto3.Query{String: text}) }
	}
	instead := nonsense
	if commits.MatchString(st.text) {
		instead = "ROLLBACK" // a COMMIT that fails ends the transaction
	}
	return s.act(s.proxy.choose(st.text, false), execution{forward: send(st.sent), refuse: send(instead)})
}

func (s *session) parse(m message) error {
	var p pgproto3.Parse
	if err := p.Decode(m.body); err != nil {
		return err
	}
	st := s.proxy.rewrite(p.Query)
	p.Query = st.sent
	if err := s.exchange("1", &p, &pgproto3.Flush{}); err != nil || s.failed {
		return err
	}
	s.statements[p.Name] = st
	return nil
}

func (s *session) bind(m message) error {
	var b pgproto3.Bind
	if err := b.Decode(m.body); err != nil {
		return err
	}
	s.portals[b.DestinationPortal] = s.statements[b.PreparedStatement]
	return s.exchange("2", m, &pgproto3.Flush{})
}

func (s *session) close(m message) error {
	var c pgproto3.Close
	if err := c.Decode(m.body); err != nil {
		return err
	}
	if c.ObjectType == 'S' {
		delete(s.statements, c.Name)
	} else {
		delete(s.portals, c.Name)
	}
	return s.exchange("3", m, &pgproto3.Flush{})
}

func (s *session) execute(m message) error {
	var x pgproto3.Execute
	if err := x.Decode(m.body); err != nil {
		return err
	}
	st := s.portals[x.Portal]
	s.tag = st.tag
	e := execution{
		// Done, out of rows for now, or empty.
		forward: func() error { return s.exchange("CsI", m, &pgproto3.Flush{}) },
		refuse:  func() error { return s.refuseExecute(st) },
	}
	if s.ready != nil {
		return e.forward() // an action applies to the whole of this exchange
	}
	return s.act(s.proxy.choose(st.text, false), e)
}

// refuseExecute has the server fail where it would have executed. It skips the rest until the client synchronises.
func (s *session) refuseExecute(st statement) error {
	var messages []encoder
	if commits.MatchString(st.text) {
		messages = []encoder{
			&pgproto3.Close{ObjectType: 'S', Name: ownName}, // left by an earlier one
			&pgproto3.Parse{Name: ownName, Query: "ROLLBACK"},
			&pgproto3.Bind{DestinationPortal: ownName, PreparedStatement: ownName},
			&pgproto3.Execute{Portal: ownName},
		}
	}
	return s.exchange("", append(messages, &pgproto3.Parse{Name: ownName, Query: nonsense}, &pgproto3.Flush{})...)
}
