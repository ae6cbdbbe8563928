package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/pebblestore"
	"github.com/idemd/idemd/store/sqlstore"
	"github.com/idemd/idemd/store/storepb"
)

// recoveryCmd is the way back from a store that has forgotten something.
type recoveryCmd struct {
	Begin  recoveryBeginCmd  `cmd:"" help:"After a restore or a failover: refuse, in every namespace, keys that may have been forgotten."`
	Status recoveryStatusCmd `cmd:"" help:"Show the recovery floors, and what was done about them."`
	Import recoveryImportCmd `cmd:"" help:"Say what became of forgotten keys; known ones are never changed."`
	Lift   recoveryLiftCmd   `cmd:"" help:"Take the recovery floor off a namespace: unknown keys are granted again."`
}

// beginTime is how long to wait until a recovery is in force: replicas of a database act by
// copies of the namespaces for a while.
const beginTime = time.Minute

type recoveryBeginCmd struct {
	remoteFlags
	auditFlags
	From         instant `xor:"until" required:"" placeholder:"RFC3339" help:"Up to when the store knows every key: the time of the backup, or of the last transaction that was copied."`
	NothingKnown bool    `env:"-" xor:"until" required:"" help:"The store that was is lost, and this is a new one: no key is known from before. With --data-dir it is made if there is none."`
	DataDir      *string `env:"-" placeholder:"DIR" help:"Begin it in an embedded store that no server has open."`
	databaseFlags
}

// Run is called by kong.
func (c *recoveryBeginCmd) Run(s *session) error {
	req := store.BeginRecoveryRequest{CompleteUntil: c.From.Time, Actor: c.Actor, Reason: c.Reason}
	if c.NothingKnown {
		req.CompleteUntil = store.KnowsNothing
	}
	switch {
	case c.Store != nil && c.DataDir != nil:
		return usageError("both --data-dir and %s are given: keys are either in a directory or in a database", named("--store", "IDEMD_STORE", *c.Store))
	case c.Store != nil && c.Addr != defaultAddr:
		return usageError("both %s and %s are given: the recovery is begun in a database, or a server is asked to", named("--addr", "IDEMD_ADDR", c.Addr), named("--store", "IDEMD_STORE", *c.Store))
	case c.DataDir != nil:
		return c.beginIn(s, *c.DataDir, req)
	case c.Store != nil:
		if err := c.check(); err != nil {
			return err
		}
		db, err := c.openStore(s.ctx, sqlstore.Options{MustExist: true})
		if err != nil {
			return err
		}
		fmt.Fprintf(s.stderr, "idemd: beginning it in the whole database %s\n", c.place())
		return errors.Join(c.begin(s, db, req), db.Close())
	}
	return c.callFor(s, beginTime, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).BeginRecovery(ctx, storepb.BeginRecoveryRequestToProto(req))
		if err != nil {
			return err
		}
		return c.print(s, regionAsked(ctx, conn), resp)
	})
}

// beginIn begins the recovery of an embedded store. One of which nothing is left is made: nobody
// can be granted anything in it before its floor stands.
func (c *recoveryBeginCmd) beginIn(s *session, dir string, req store.BeginRecoveryRequest) error {
	err := withStoreOr(dir, pebblestore.Options{MustExist: !c.NothingKnown}, func(db *pebblestore.Store) error {
		if db.Made() {
			fmt.Fprintf(s.stderr, "idemd: made a new, empty store in %s\n", dir)
		}
		return c.begin(s, db, req)
	})
	switch {
	case errors.Is(err, pebblestore.ErrNoStore):
		return fmt.Errorf("%w; if it is lost for good, --nothing-known in place of --from makes a new one", err)
	case errors.Is(err, pebblestore.ErrDamaged):
		return fmt.Errorf("%w; if there is no backup, move the directory away and keep it (mv %s), then run this again with --nothing-known, which makes a new one",
			err, shellQuote(dir)+" "+shellQuote(dir+".damaged"))
	}
	return err
}

// begin begins the recovery of a store that this process has open, and waits until it is in force.
func (c *recoveryBeginCmd) begin(s *session, db store.Recovery, req store.BeginRecoveryRequest) error {
	begun, err := db.BeginRecovery(s.ctx, req)
	if err != nil {
		return err
	}
	if wait := begun.InForce.Sub(begun.Now); wait > 0 {
		fmt.Fprintf(s.stderr, "idemd: begun; waiting %v, for so long servers that are still running may act by what was before\n", wait)
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	return c.print(s, "", storepb.BegunRecoveryToProto(begun))
}

func (c *recoveryBeginCmd) print(s *session, region string, resp *idemdv1.BeginRecoveryResponse) error {
	return c.show(s, resp, func(p *page) {
		regionLines(p, region, resp.GetNamespaces()...)
		for _, ns := range resp.GetNamespaces() {
			recoveryText(p, ns)
		}
	})
}

type recoveryStatusCmd struct {
	remoteFlags
}

// Run is called by kong.
func (c *recoveryStatusCmd) Run(s *session) error {
	return c.call(s, func(ctx context.Context, conn *grpc.ClientConn) error {
		resp, err := idemdv1.NewAdminServiceClient(conn).ListNamespaces(ctx, &idemdv1.ListNamespacesRequest{})
		if err != nil {
			return err
		}
		region := regionAsked(ctx, conn)
		return c.show(s, resp, func(p *page) {
			regionLines(p, region, resp.GetNamespaces()...)
			for _, ns := range resp.GetNamespaces() {
				recoveryText(p, ns)
			}
		})
	})
}

// regionAsked is the region of the server that is asked, or empty if it is of none or does not say.
func regionAsked(ctx context.Context, conn *grpc.ClientConn) string {
	resp, err := idemdv1.NewIdempotencyServiceClient(conn).GetTopology(ctx, &idemdv1.GetTopologyRequest{})
	if err != nil {
		return ""
	}
	return resp.GetRegion()
}

// regionLines say whose recovery is shown, where there are several regions.
func regionLines(p *page, region string, list ...*idemdv1.Namespace) {
	var shared []string
	for _, ns := range list {
		shared = ns.GetSharedBy() // of all the same
	}
	switch {
	case len(shared) > 0 && region != "":
		p.line("region %s, whose server was asked", region)
	case region != "":
		p.line("region %s, whose server was asked; the others have floors of their own", region)
	}
	if len(shared) > 0 {
		p.line("%s are in one database: a recovery and its floors are of all of them", store.RegionsText(shared))
	}
}

// recoveryText shows the floors of a namespace and what was done about them.
func recoveryText(p *page, ns *idemdv1.Namespace) {
	p.heading("%s", ns.GetName())
	if ns.GetRecoveryFloor() == nil {
		p.field("recovery floor", "none")
	}
	recoveryFields(p, ns)
}

func recoveryFields(p *page, ns *idemdv1.Namespace) {
	p.when("recovery floor", ns.GetRecoveryFloor())
	if forgotAll(ns) {
		p.field("known before it", fmt.Sprintf("nothing, whatever the backup has: settle all that retention covers (%v) before the floor", span(ns.GetRetention().AsDuration())))
	}
	p.when("floor for new ones", ns.GetFloorForNew())
	for _, step := range ns.GetRecovery() {
		text := fmt.Sprintf("%s at %s by %s: %s", storepb.Word(step.GetKind(), "RECOVERY_KIND_"), formatTime(step.GetAt()), shown(step.GetActor()), shown(step.GetReason()))
		switch until := step.GetCompleteUntil(); {
		case until == nil:
		case until.AsTime().Equal(store.KnowsNothing):
			text += " (no key is known from before)"
		default:
			text += " (complete until " + formatTime(step.GetCompleteUntil()) + ")"
		}
		p.field("recovery", text)
	}
}

// forgotAll reports whether a floor stands before which nothing is known.
func forgotAll(m *idemdv1.Namespace) bool {
	ns, err := storepb.NamespaceAnswerFromProto(m)
	return err != nil || ns.ForgotAll()
}

type recoveryLiftCmd struct {
	remoteFlags
	auditFlags
	NothingKnown bool   `env:"-" help:"Confirm that all is settled, where nothing is known from before the floor."`
	LeasesEnded  bool   `env:"-" help:"Confirm that nobody acts by a lease from before the floor any more, if it is less than 15 minutes since then."`
	AllRegions   bool   `env:"-" help:"Confirm that it is lifted in all regions of a database that has several."`
	Namespace    string `env:"-" xor:"whose" required:"" help:"Namespace."`
	ForNew       bool   `env:"-" xor:"whose" required:"" help:"Lift the floor that namespaces created from now on begin with."`
}

// Run is called by kong.
func (c *recoveryLiftCmd) Run(s *session) error {
	region := ""
	err := c.callFor(s, 0, sendAgain, func(ctx context.Context, conn *grpc.ClientConn) error {
		region = regionAsked(ctx, conn)
		resp, err := idemdv1.NewAdminServiceClient(conn).LiftRecovery(ctx, storepb.LiftRecoveryRequestToProto(store.LiftRecoveryRequest{
			Namespace: c.Namespace, ForNew: c.ForNew, NothingKnown: c.NothingKnown, LeasesEnded: c.LeasesEnded, AllRegions: c.AllRegions, Actor: c.Actor, Reason: c.Reason,
		}))
		if err != nil {
			return err
		}
		return c.show(s, resp, func(p *page) {
			regionLines(p, region, resp.GetNamespace())
			recoveryText(p, resp.GetNamespace())
		})
	})
	if err != nil && region != "" { // it may stand in another one
		return fmt.Errorf("region %s, whose server was asked: %w", region, err)
	}
	return err
}

type recoveryImportCmd struct {
	remoteFlags
	Actor     string `default:"${user}" help:"Who decided ($$USER, or the user id)."`
	Reason    string `env:"-" help:"Why, for lines that do not say it."`
	Namespace string `env:"-" required:"" help:"Namespace."`
	File      string `arg:"" placeholder:"FILE|-" help:"JSON lines, or - for standard input: id; scope, entity, reason if there are any; happened, nothing, an outcome {code, message, body, type} or what record export wrote; completed_at; fingerprint {version, digest}."`
}

// importLine is a line of the file.
type importLine struct {
	Scope       string             `json:"scope,omitempty"`
	ID          string             `json:"id"`
	Entity      string             `json:"entity,omitempty"`
	Fingerprint *importFingerprint `json:"fingerprint,omitempty"`
	// Happened says that it was carried out and the answer is not known, Nothing that it was not.
	Happened bool           `json:"happened,omitempty"`
	Nothing  bool           `json:"nothing,omitempty"`
	Outcome  *importOutcome `json:"outcome,omitempty"`
	// Recorded is an outcome as another store has it, byte for byte, in protojson.
	Recorded    json.RawMessage `json:"recorded,omitempty"`
	CompletedAt *importTime     `json:"completed_at,omitempty"`
	Reason      string          `json:"reason,omitempty"`
}

type importFingerprint struct {
	Version uint32      `json:"version,omitempty"`
	Digest  importBytes `json:"digest,omitempty"`
}

type importOutcome struct {
	Code    importCode `json:"code"`
	Message string     `json:"message"`
	Body    string     `json:"body"`
	Type    string     `json:"type"`
}

// maxImportLine has room for the largest outcome with every byte escaped.
const maxImportLine = 8 * store.MaxOutcomeBytes

// errNotAll is that of a file of which not all lines were imported, which was shown.
var errNotAll = errors.New("not every line was imported")

// Run is called by kong. A line that cannot be imported fails alone.
func (c *recoveryImportCmd) Run(s *session) error {
	in, err := c.open(s)
	if err != nil {
		return err
	}
	defer in.Close()
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	admin := idemdv1.NewAdminServiceClient(conn)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxImportLine)
	var done imports
	number := 0
	for lines.Scan() {
		number++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		resp, err := c.line(s, admin, lines.Bytes())
		if said := done.count(resp, err); said != "" {
			fmt.Fprintf(s.stderr, "line %d: %s\n", number, oneLine(said))
		}
	}
	if _, err := fmt.Fprintf(s.stdout, "imported %d, known as that before %d, not imported %d\n", done.imported, done.known, done.failed); err != nil {
		return unwritten(err)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w; it was not imported, nor was any that follows", number+1, err)
	}
	if done.failed > 0 {
		return errNotAll
	}
	return nil
}

// imports counts what became of lines.
type imports struct{ imported, known, failed int }

// count counts a line, and returns why it was not imported.
func (n *imports) count(resp *idemdv1.ImportOutcomeResponse, err error) string {
	switch {
	case err != nil:
		n.failed++
		return err.Error()
	case resp.GetImported():
		n.imported++
	case resp.GetSame():
		n.known++
	default:
		n.failed++
		return "the key is known and says something else (" + recordSays(resp.GetRecord()) + "); it stays: look at it with record inspect"
	}
	return ""
}

// recordSays is what a record tells, in short.
func recordSays(rec *idemdv1.Record) string {
	text := fmt.Sprintf("%s, fence %d", storepb.Word(rec.GetState(), "STATE_"), rec.GetFence())
	if rec.GetState() != idemdv1.State_STATE_COMPLETED {
		return text
	}
	return text + ", outcome " + statusText(rec.GetOutcome().GetStatus()) + ", fingerprint " + fingerprintText(rec.GetFingerprint())
}

func (c *recoveryImportCmd) open(s *session) (io.ReadCloser, error) {
	if c.File == "-" {
		return io.NopCloser(s.stdin), nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, usageError("%v", err)
	}
	return f, nil
}

// line imports one line.
func (c *recoveryImportCmd) line(s *session, admin idemdv1.AdminServiceClient, text []byte) (*idemdv1.ImportOutcomeResponse, error) {
	line, err := parseImportLine(text)
	if err != nil {
		return nil, err
	}
	req, err := line.request(c.Namespace)
	if err != nil {
		return nil, err
	}
	req.Actor = c.Actor
	if req.Reason == "" {
		req.Reason = c.Reason
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Duration(c.Timeout))
	defer cancel()
	resp, err := admin.ImportOutcome(ctx, storepb.ImportRequestToProto(req))
	if err != nil {
		return nil, c.explain(err, time.Duration(c.Timeout))
	}
	return resp, nil
}

func parseImportLine(text []byte) (line importLine, err error) {
	err = strictJSON(text, &line)
	return line, err
}

func (l *importLine) request(namespace string) (store.ImportRequest, error) {
	req := store.ImportRequest{
		Key:    store.Key{Namespace: namespace, Scope: l.Scope, ID: l.ID, Entity: l.Entity},
		Reason: l.Reason, AnyFingerprint: l.Fingerprint == nil,
	}
	if l.Fingerprint != nil {
		req.Fingerprint = store.Fingerprint{Version: l.Fingerprint.Version, Digest: string(l.Fingerprint.Digest)}
	}
	if l.CompletedAt != nil {
		if l.CompletedAt.IsZero() { // which means now, to a server
			return req, errors.New("completed_at is the year 1, a time that nobody has set; leave it out if it is not known: then retention counts from now")
		}
		req.CompletedAt = l.CompletedAt.Time
	}
	said := 0
	for _, one := range []bool{l.Happened, l.Nothing, l.Outcome != nil, l.Recorded != nil} {
		if one {
			said++
		}
	}
	if said != 1 {
		return req, errors.New(`say one of "happened": true, "nothing": true, "outcome": {…} and "recorded": {…}`)
	}
	if l.Happened {
		req.Outcome = &store.Outcome{BodyOmitted: true}
	}
	var err error
	switch {
	case l.Outcome != nil:
		req.Outcome, err = l.Outcome.outcome()
	case l.Recorded != nil:
		req.Outcome, err = recordedOutcome(l.Recorded)
	}
	return req, err
}

// recordedOutcome reads what record export wrote.
func recordedOutcome(text []byte) (*store.Outcome, error) {
	var m idemdv1.Outcome
	if err := protojson.Unmarshal(text, &m); err != nil {
		return nil, errors.New("recorded must be as record export wrote it: an object with status, body, body_type, body_omitted, header and trailer, whose bytes are in base64")
	}
	return storepb.OutcomeFromProto(&m), nil
}

func (o *importOutcome) outcome() (*store.Outcome, error) {
	outcome := &store.Outcome{Body: []byte(o.Body), BodyType: o.Type}
	if o.Body != "" && o.Type == "" {
		outcome.BodyType = "text/plain"
	}
	if codes.Code(o.Code) == codes.OK && o.Message == "" {
		return outcome, nil
	}
	if codes.Code(o.Code) == codes.OK {
		return nil, errors.New("a message goes with a code that is not OK")
	}
	status, err := proto.Marshal(&spb.Status{Code: int32(o.Code), Message: o.Message})
	outcome.Status = status
	return outcome, err
}
