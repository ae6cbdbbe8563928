package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"

	"google.golang.org/grpc"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// keyFlags name a key.
type keyFlags struct {
	Namespace string `default:"default" help:"Namespace of the key (${default})."`
	Scope     string `help:"Scope of the key: the operation."`
	ID        string `name:"id" required:"" help:"Id of the key: made once for the intent, sent with every repeat. That of a step, an event or a slot is derived by idemd key."`
	Entity    string `help:"Entity of the key: who owns the intent."`
}

func (f *keyFlags) key() *idemdv1.Key {
	return &idemdv1.Key{Namespace: f.Namespace, Scope: f.Scope, Id: f.ID, Entity: f.Entity}
}

// args are the flags again, for a command that the user can run next.
func (f *keyFlags) args() []string {
	var args []string
	if f.Namespace != store.DefaultNamespace {
		args = append(args, "--namespace", f.Namespace)
	}
	if f.Scope != "" {
		args = append(args, flagArgs("--scope", f.Scope)...)
	}
	args = append(args, flagArgs("--id", f.ID)...)
	if f.Entity != "" {
		args = append(args, flagArgs("--entity", f.Entity)...)
	}
	return args
}

// flagArgs are a flag and its value, in one word if the value looks like a flag itself.
func flagArgs(name, value string) []string {
	if strings.HasPrefix(value, "-") {
		return []string{name + "=" + value}
	}
	return []string{name, value}
}

// fingerprintFlags give the digest of the request that the intent carries.
type fingerprintFlags struct {
	Fingerprint        opaque `placeholder:"TEXT|hex:…" help:"Digest of the request; another one on the same key is a caller's bug."`
	FingerprintVersion uint32 `help:"Tag of the algorithm that made the fingerprint (0: the application's own)."`
}

func (f *fingerprintFlags) proto() *idemdv1.Fingerprint {
	if len(f.Fingerprint) == 0 && f.FingerprintVersion == 0 {
		return nil
	}
	return &idemdv1.Fingerprint{Version: f.FingerprintVersion, Digest: f.Fingerprint}
}

// attemptFlags name the attempt that holds, or held, a key.
type attemptFlags struct {
	Attempt attemptID `required:"" placeholder:"TEXT|hex:…" help:"Id of the attempt that was granted the key."`
	Fence   *int64    `placeholder:"N" help:"Fence that the grant gave; programs send it. Left out, the key's current fence is looked up first: then an outcome that comes too late is kept as evidence under the fence of whoever holds the key now."`
}

// fence returns the fence to send.
func (f *attemptFlags) fence(ctx context.Context, conn *grpc.ClientConn, key *idemdv1.Key) (int64, error) {
	switch {
	case f.Fence != nil && *f.Fence < 1:
		return 0, usageError("--fence: a fence is positive, and %d is not; send the one that the grant gave", *f.Fence)
	case f.Fence != nil:
		return *f.Fence, nil
	}
	resp, err := idemdv1.NewIdempotencyServiceClient(conn).Lookup(ctx, &idemdv1.LookupRequest{Key: key})
	return resp.GetFence(), err
}

// newAttempt draws an attempt id: 128 random bits, as text.
func newAttempt() attemptID {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // never fails
	return attemptID{opaque(hex.EncodeToString(bits[:]))}
}

// command is a line that the user can paste into a shell.
func (s *session) command(args ...string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = shellQuote(arg)
	}
	return s.name + " " + strings.Join(words, " ")
}
