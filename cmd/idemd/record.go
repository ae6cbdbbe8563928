package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// recordCmd is what an operator does with single keys.
type recordCmd struct {
	Inspect      recordInspectCmd      `cmd:"" help:"Show everything known about a key, its outcome and events included."`
	Digest       recordDigestCmd       `cmd:"" help:"Print how the log, which holds no keys, names a key. No server is asked."`
	List         recordListCmd         `cmd:"" help:"List the live records of a namespace."`
	Export       recordExportCmd       `cmd:"" help:"Write what became of the keys of a namespace, as lines that recovery import reads at another store."`
	Resolve      recordResolveCmd      `cmd:"" help:"Settle a lapsed key: record an outcome, or say that nothing happened."`
	ForceRelease recordForceReleaseCmd `cmd:"" help:"End the attempt that holds a key; the next claimer is told to check, then act."`
}

type recordInspectCmd struct {
	remoteFlags
	keyFlags
}

// Run is called by kong.
func (c *recordInspectCmd) Run(s *session) error {
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).InspectRecord(ctx, &idemdv1.InspectRecordRequest{Key: c.key()})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			stateFields(p, resp.GetRecord())
			attemptFields(p, resp)
			outcomeFields(p, resp.GetRecord())
			for _, event := range resp.GetEvents() {
				eventText(p, event)
			}
		})
	})
}

type recordDigestCmd struct{ keyFlags }

// Run is called by kong.
func (c *recordDigestCmd) Run(s *session) error {
	key := storepb.KeyFromProto(c.key())
	if err := key.Validate(); err != nil {
		return usageError("%v", err)
	}
	if _, err := fmt.Fprintln(s.stdout, key.LogName()); err != nil {
		return unwritten(err)
	}
	return nil
}

type recordListCmd struct {
	remoteFlags
	Namespace string `default:"default" help:"Namespace (${default})."`
	State     string `enum:"in-progress,completed,released," default:"" help:"Only in-progress, completed or released ones."`
	Lapsed    bool   `help:"Only those whose lease ended without an outcome."`
	Scope     string `help:"Only those of this scope, in full."`
	Entity    string `help:"Only those of this entity, in full."`
	PageSize  int32  `help:"How many to list, at most 1000 (100)."`
	PageToken string `help:"Go on where a page ended that printed this token."`
}

// Run is called by kong.
func (c *recordListCmd) Run(s *session) error {
	if c.Lapsed && c.State != "" && c.State != "in-progress" {
		return usageError("--lapsed goes with --state in-progress or none: a lapsed record is one in progress whose lease ended")
	}
	req := &idemdv1.ListRecordsRequest{
		Namespace: c.Namespace, Lapsed: c.Lapsed, Scope: c.Scope, Entity: c.Entity, PageSize: c.PageSize, PageToken: c.PageToken,
	}
	if c.State != "" {
		name := "STATE_" + strings.ToUpper(strings.ReplaceAll(c.State, "-", "_"))
		req.State = idemdv1.State(idemdv1.State_value[name])
	}
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := listRecords(ctx, idemdv1.NewAdminServiceClient(conn), req)
		if err != nil {
			return err
		}
		if err := c.show(s, resp, func(p *page) { recordListText(p, resp) }); err != nil {
			return err
		}
		if resp.GetMissing() != "" {
			return exitError{fmt.Errorf("not all is listed; missing is %s", resp.GetMissing()), exitNoAnswer}
		}
		return nil
	})
}

// listRecords lists as many records as are asked for, if there are. A page of the server's
// may have fewer, because it looks at a bounded part of the store.
func listRecords(ctx context.Context, admin idemdv1.AdminServiceClient, req *idemdv1.ListRecordsRequest) (*idemdv1.ListRecordsResponse, error) {
	left := cmp.Or(req.GetPageSize(), store.DefaultPageSize)
	all := &idemdv1.ListRecordsResponse{}
	for {
		page, err := admin.ListRecords(ctx, req)
		if err != nil {
			return nil, err
		}
		all.Records = append(all.Records, page.GetRecords()...)
		all.NextPageToken, all.Now = page.GetNextPageToken(), page.GetNow()
		if page.GetMissing() != "" {
			all.Missing = strings.TrimPrefix(all.GetMissing()+"; "+page.GetMissing(), "; ")
		}
		left -= int32(len(page.GetRecords()))
		if left <= 0 || all.GetNextPageToken() == "" {
			return all, nil
		}
		req.PageSize, req.PageToken = left, page.GetNextPageToken()
	}
}

func recordListText(p *page, resp *idemdv1.ListRecordsResponse) {
	p.line("STATE\tSCOPE\tID\tENTITY\tFENCE\tGRANTED AT")
	for _, r := range resp.GetRecords() {
		key := r.GetKey()
		p.line("%s\t%s\t%s\t%s\t%d\t%s", stateWord(r.GetState(), r.GetLapsed()), short(key.GetScope()),
			short(key.GetId()), short(key.GetEntity()), r.GetFence(), formatTime(r.GetGrantedAt()))
	}
	if token := resp.GetNextPageToken(); token != "" {
		p.line("more with --page-token %s", shellQuote(token))
	}
}

// short is a part of a key as a column has room for it; -o json has all of it.
func short(part string) string {
	const room = 64
	if runes := []rune(part); len(runes) > room {
		return keyText(string(runes[:room-1])) + "…"
	}
	return keyText(part)
}

// expectFlags say which record an operator means.
type expectFlags struct {
	Fence    int64 `xor:"fence" required:"" placeholder:"N" help:"The record's fence, as record inspect shows it: if the key has gone on since, nothing is done."`
	AnyFence bool  `xor:"fence" required:"" help:"Do it whatever the fence is: then running it again may hit the next attempt."`
}

// auditFlags say who forced an action, and why.
type auditFlags struct {
	Actor  string `default:"${user}" help:"Who decided ($$USER, or the user id)."`
	Reason string `required:"" help:"Why; kept with the key's events."`
}

type recordResolveCmd struct {
	remoteFlags
	keyFlags
	expectFlags
	auditFlags
	outcomeFlags
	NothingHappened bool `help:"Record no outcome: the key may be claimed afresh."`
}

// Run is called by kong.
func (c *recordResolveCmd) Run(s *session) error {
	req := &idemdv1.ResolveRequest{Key: c.key(), Fence: c.Fence, AnyFence: c.AnyFence, Actor: c.Actor, Reason: c.Reason}
	switch {
	case c.given() == c.NothingHappened:
		return usageError("give either what happened (--outcome, --code) or --nothing-happened")
	case c.given():
		outcome, err := c.proto(s.stdin)
		if err != nil {
			return err
		}
		req.Outcome = outcome
	}
	return c.callFor(s, 0, lookFirst, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).Resolve(ctx, req)
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) { recordText(p, resp.GetRecord()) })
	})
}

type recordForceReleaseCmd struct {
	remoteFlags
	keyFlags
	expectFlags
	auditFlags
}

// Run is called by kong.
func (c *recordForceReleaseCmd) Run(s *session) error {
	return c.callFor(s, 0, lookFirst, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).ForceRelease(ctx, &idemdv1.ForceReleaseRequest{
			Key: c.key(), Fence: c.Fence, AnyFence: c.AnyFence, Actor: c.Actor, Reason: c.Reason,
		})
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) { recordText(p, resp.GetRecord()) })
	})
}
