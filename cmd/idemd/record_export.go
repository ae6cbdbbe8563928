package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

// recordExportCmd writes what one store knows so that another one can be told of it.
type recordExportCmd struct {
	remoteFlags
	Namespace string `env:"-" required:"" help:"Namespace."`
	Scope     string `env:"-" help:"Only those of this scope, in full."`
	Entity    string `env:"-" help:"Only those of this entity, in full."`
	PageSize  int32  `env:"-" hidden:"" default:"1000" help:"How many are listed at a time."`
}

// errNotExported is that of an export which lacks keys, which were shown.
var errNotExported = errors.New("not every key was exported, see above: let the attempts that hold one end, settle those that are lapsed (record resolve), and export once more")

// Run is called by kong. A key of which it is not known what became is named and left out.
func (c *recordExportCmd) Run(s *session) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	out := bufio.NewWriter(s.stdout)
	x := &export{recordExportCmd: c, s: s, admin: idemdv1.NewAdminServiceClient(conn), lines: json.NewEncoder(out)}
	x.lines.SetEscapeHTML(false)
	err = x.pages()
	if flushed := out.Flush(); flushed != nil {
		return unwritten(flushed)
	}
	fmt.Fprintf(s.stderr, "exported %d, released and left out %d, not exported %d\n", x.exported, x.released, x.left)
	switch {
	case err != nil:
		return err
	case x.missing != "":
		return exitError{fmt.Errorf("not all is exported; missing is %s", x.missing), exitNoAnswer}
	case x.left > 0:
		return errNotExported
	}
	return nil
}

// export is one run of the command.
type export struct {
	*recordExportCmd
	s     *session
	admin idemdv1.AdminServiceClient
	lines *json.Encoder

	exported, released, left int
	missing                  string
}

// pages exports page by page: each call has the time of --timeout, and all of them any.
func (x *export) pages() error {
	req := &idemdv1.ListRecordsRequest{Namespace: x.Namespace, Scope: x.Scope, Entity: x.Entity, PageSize: x.PageSize}
	for {
		page, err := asked(x, func(ctx context.Context) (*idemdv1.ListRecordsResponse, error) { return x.admin.ListRecords(ctx, req) })
		if err != nil {
			return err
		}
		for _, rec := range page.GetRecords() {
			if err := x.record(rec.GetKey()); err != nil {
				return err
			}
		}
		if x.missing == "" {
			x.missing = page.GetMissing()
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return nil
		}
	}
}

// record exports one key. A list has no outcomes, so it is looked at by itself, and may be gone by now.
func (x *export) record(key *idemdv1.Key) error {
	found, err := asked(x, func(ctx context.Context) (*idemdv1.InspectRecordResponse, error) {
		return x.admin.InspectRecord(ctx, &idemdv1.InspectRecordRequest{Key: key})
	})
	switch {
	case errors.Is(err, store.ErrKeyNotFound):
		return nil
	case err != nil && exitCode(err) == exitNoAnswer:
		return err
	case err != nil:
		x.leave(key, err.Error())
		return nil
	}
	if found.GetRecord().GetState() == idemdv1.State_STATE_RELEASED {
		// Nothing came of it here. At a store that has forgotten what came of it elsewhere, that would free the key.
		x.released++
		return nil
	}
	line, why := exportLine(found.GetRecord())
	if why != "" {
		x.leave(key, why)
		return nil
	}
	if err := x.lines.Encode(line); err != nil {
		return unwritten(err)
	}
	x.exported++
	return nil
}

func (x *export) leave(key *idemdv1.Key, why string) {
	x.left++
	fmt.Fprintf(x.s.stderr, "not exported: id %s, scope %s, entity %s: %s\n", shown(key.GetId()), keyText(key.GetScope()), keyText(key.GetEntity()), oneLine(why))
}

// asked is one call. Its error says what the user is told, and wraps what the store said.
func asked[R any](x *export, call func(context.Context) (R, error)) (R, error) {
	limit := time.Duration(x.Timeout)
	ctx, cancel := context.WithTimeout(x.s.ctx, limit)
	defer cancel()
	resp, err := call(ctx)
	if err != nil {
		said := storepb.FromStatus(err)
		if errors.Is(said, store.ErrKeyNotFound) {
			return resp, said
		}
		err = x.explain(err, limit)
	}
	return resp, err
}

// exportLine is the line of a record, or why there is none.
func exportLine(rec *idemdv1.Record) (line importLine, why string) {
	key := rec.GetKey()
	line = importLine{Scope: key.GetScope(), ID: key.GetId(), Entity: key.GetEntity()}
	if rec.GetState() != idemdv1.State_STATE_COMPLETED {
		return line, stateText(rec.GetState(), rec.GetLapsed())
	}
	if print := storepb.FingerprintFromProto(rec.GetFingerprint()); print != store.UnknownFingerprint {
		line.Fingerprint = &importFingerprint{Version: print.Version, Digest: importBytes(print.Digest)}
	}
	recorded, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(rec.GetOutcome())
	if err != nil {
		return line, err.Error()
	}
	line.Recorded = recorded
	line.CompletedAt = &importTime{rec.GetEndedAt().AsTime()}
	return line, ""
}
