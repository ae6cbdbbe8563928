package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/storepb"
)

const defaultAddr = "127.0.0.1:7600"

// remoteFlags are common to the subcommands that ask a server.
type remoteFlags struct {
	Addr            string `default:"127.0.0.1:7600" placeholder:"HOST:PORT" help:"Where the server listens (${default})."`
	credentialFlags `embed:""`
	AllowInsecure   bool   `help:"Send plain text to another machine."`
	Timeout         span   `default:"10s" help:"How long to wait for the answer, beyond --wait (${default})."`
	Output          string `short:"o" enum:"text,json" default:"text" help:"text, or json: the response in protojson."`
}

// reach are the flags by which a further command reaches the same server.
func (f *remoteFlags) reach() []string {
	if f.CA == "" {
		return append(reachBy(f.Addr), f.credentialArgs()...)
	}
	return append([]string{"--addr", f.Addr}, f.credentialArgs()...)
}

// What to do when there was no answer.
const (
	askAgain  = "ask again"
	runAgain  = "run the same command again"
	sendAgain = "it may have been done or not; " + runAgain
	lookFirst = "it may have been done or not; look before you do it again"
)

// call is callFor for what changes nothing, and does not wait.
func (f *remoteFlags) call(s *session, fn func(context.Context, *grpc.ClientConn) error) error {
	return f.callFor(s, 0, askAgain, fn)
}

// callFor makes a connection and lets fn use it for at most the timeout and wait. Advice
// says what to do if no answer can be shown.
func (f *remoteFlags) callFor(s *session, wait time.Duration, advice string, fn func(context.Context, *grpc.ClientConn) error) error {
	var sent sentProbe
	conn, err := f.dial(grpc.WithStatsHandler(&sent), alive())
	if err != nil {
		return err
	}
	defer conn.Close()
	limit := time.Duration(f.Timeout) + wait
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	err = f.explain(fn(ctx, conn), limit)
	if err != nil && exitCode(err) == exitNoAnswer {
		if !sent.Load() {
			advice = "nothing was sent"
		}
		err = exitError{fmt.Errorf("%w; %s", err, adviceAfter(err, advice)), exitNoAnswer}
	}
	return err
}

// undone is in a refusal that says itself that there is nothing to find out.
const undone = "nothing was done"

// adviceAfter is the advice, unless nothing was done, which NO_HOME always means for a command that is of
// one step.
func adviceAfter(err error, advice string) string {
	told, noHome := strings.Contains(err.Error(), undone), strings.HasPrefix(err.Error(), "NO_HOME: ")
	if !told && !noHome || advice == moveAgain || advice == acceptAgain {
		return advice
	}
	next := askAgain
	if advice == sendAgain || advice == lookFirst {
		next = runAgain
	}
	if told {
		return next
	}
	return undone + "; " + next
}

// sentProbe finds out whether anything was sent to a server: that of which nothing was has
// not been done.
type sentProbe struct{ atomic.Bool }

// HandleRPC implements [stats.Handler].
func (p *sentProbe) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.OutHeader); ok {
		p.Store(true)
	}
}

// TagRPC implements [stats.Handler].
func (p *sentProbe) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements [stats.Handler].
func (p *sentProbe) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (p *sentProbe) HandleConn(context.Context, stats.ConnStats) {}

func (f *remoteFlags) dial(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	shown, err := f.checked()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(f.Addr, slices.Concat(opts, shown, []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(client.MaxReceiveBytes))})...)
	if err != nil {
		return nil, usageError("--addr %q: %v", f.Addr, err)
	}
	return conn, nil
}

// dialClient is dial for the Go client.
func (f *remoteFlags) dialClient() (*client.Client, error) {
	shown, err := f.checked()
	if err != nil {
		return nil, err
	}
	c, err := client.Dial(f.Addr, shown...)
	if err != nil {
		return nil, usageError("--addr %q: %v", f.Addr, err)
	}
	return c, nil
}

// checked returns the options of a connection to an address to which one may be made.
func (f *remoteFlags) checked() ([]grpc.DialOption, error) {
	err := checkAddr(f.Addr, f.AllowInsecure || f.CA != "")
	switch {
	case errors.Is(err, server.ErrInsecureAddress):
		return nil, usageError("--addr %s: another machine, to which only TLS goes; give --ca, or allow plain text by name (--allow-insecure)", f.Addr)
	case err != nil:
		return nil, usageError("--addr %q is not host:port, such as %s", f.Addr, defaultAddr)
	}
	return f.dialOptions(f.Addr)
}

// explain turns the error of a call into what the user is told.
func (f *remoteFlags) explain(err error, limit time.Duration) error {
	st, isStatus := status.FromError(err)
	if err == nil || !isStatus {
		return err
	}
	if reason, _ := storepb.ReasonIn(st); reason != "" {
		return refusal(reason, st.Message())
	}
	switch st.Code() {
	case codes.Unavailable:
		err = fmt.Errorf("no answer from %s (is `idemd serve` running there?)%s", f.Addr, f.trouble(st.Message()))
	case codes.DeadlineExceeded:
		err = fmt.Errorf("no answer from %s within %v", f.Addr, span(limit))
	case codes.Canceled:
		err = errors.New("interrupted before the answer")
	default: // not from idemd: unless it must come before anything is done, it says nothing of the key
		plain := fmt.Errorf("%s answered %v: %s", f.Addr, codeName(st.Code()), st.Message())
		for _, undone := range []error{store.ErrInvalidArgument, store.ErrUnauthenticated, store.ErrPermissionDenied} {
			if errors.Is(storepb.FromStatus(err), undone) {
				return plain
			}
		}
		err = plain
	}
	return exitError{err, exitNoAnswer}
}

// refusal is a refusal by idemd. After some it may have been done all the same.
func refusal(reason, message string) error {
	err := fmt.Errorf("%s: %s", reason, message)
	switch reason {
	case "STORE_UNAVAILABLE", "HOME_UNREACHABLE", "NO_HOME", "INTERNAL":
		return exitError{err, exitNoAnswer}
	case "OUTCOME_TOO_LARGE": // for the namespace: what is too large for all of them was not sent
		return fmt.Errorf("%w (--body-omitted, or let an operator raise the namespace's --max-outcome-bytes, to %d at most)", err, store.MaxOutcomeBytes)
	}
	return err
}

// show prints a response as the user asked for it: with text, or as JSON.
func (f *remoteFlags) show(s *session, resp proto.Message, text func(*page)) error {
	if f.Output == "json" {
		return printJSON(s, resp)
	}
	p := &page{}
	text(p)
	return p.print(s.stdout)
}

// printJSON prints the message on one line. protojson varies its white space from build
// to build on purpose; compacting makes the output fit for comparison.
func printJSON(s *session, m proto.Message) error {
	loose, err := protojson.Marshal(m)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, loose); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.stdout, line.String()); err != nil {
		return unwritten(err)
	}
	return nil
}

// checkAddr is [server.CheckListenAddr], and refuses also a port that is not a number
// from 0 to 65535.
func checkAddr(addr string, allowInsecure bool) error {
	if err := server.CheckListenAddr(addr, allowInsecure); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is not host:port, with a number from 0 to 65535 as the port", addr)
	}
	return nil
}
