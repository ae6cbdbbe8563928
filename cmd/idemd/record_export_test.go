package main

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	idemdv1 "github.com/idemd/idemd/proto/idemd/v1"
	"github.com/idemd/idemd/store"
)

// What one store knows of a namespace another one is told, byte for byte, all pages of it.
func TestExportedRecordsAreImported(t *testing.T) {
	from, to := serve(t, t.TempDir()), serve(t, t.TempDir())
	for _, s := range []*served{from, to} {
		s.run(t, "namespace", "create", "payments").ok(t)
	}
	claim := func(id string) []string {
		key := []string{"--namespace=payments", "--scope=charge", "--id=" + id, "--entity=acme", "--attempt=a"}
		from.run(t, append([]string{"claim"}, key...)...).ok(t)
		return key
	}
	for i := range 5 {
		from.run(t, append([]string{"complete", "--outcome", fmt.Sprintf("charged %d EUR", i)}, claim(fmt.Sprintf("order-%d", i))...)...).ok(t)
	}
	from.run(t, append([]string{"complete", "--code=NOT_FOUND", "--message=no such <card>"}, claim("declined")...)...).ok(t)
	from.run(t, append([]string{"complete", "--body-omitted"}, claim("large")...)...).ok(t)
	from.run(t, append([]string{"release", "--effect=none"}, claim("free")...)...).ok(t)
	printed := []string{"--namespace=payments", "--scope=charge", "--id=printed", "--entity=acme"}
	from.run(t, append([]string{"claim", "--attempt=a", "--fingerprint=hex:00ff"}, printed...)...).ok(t)
	c := dialAt(t, from.addr)
	binary := store.Key{Namespace: "payments", ID: "binary"}
	grant, err := c.Claim(t.Context(), store.ClaimRequest{Key: binary, AttemptID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	outcome := &store.Outcome{Body: []byte("\x00\xff"), BodyType: "a.B", Header: []store.MetadataEntry{{Name: "h-bin", Value: []byte{0xfe}}}, Trailer: []store.MetadataEntry{{Name: "t"}}}
	if _, err := c.Complete(t.Context(), store.CompleteRequest{Key: binary, AttemptID: "a", Fence: grant.Granted.Fence, Outcome: outcome}); err != nil {
		t.Fatal(err)
	}

	// A key that an attempt holds is named, and not taken for one of which nothing came.
	held := from.run(t, "record", "export", "--namespace=payments", "--page-size=2")
	if held.code != exitFailed || !strings.Contains(held.stderr, "not exported: id printed, scope charge, entity acme: in progress") || !strings.Contains(held.stderr, "exported 8, released and left out 1, not exported 1") {
		t.Errorf("with a key that is held: %d\n%s", held.code, held.stderr)
	}
	from.run(t, append([]string{"complete", "--attempt=a", "--outcome=done"}, printed...)...).ok(t)
	got := from.run(t, "record", "export", "--namespace=payments", "--page-size=2")
	if got.code != exitOK || !strings.Contains(got.stderr, "exported 9, released and left out 1, not exported 0") || strings.Count(got.stdout, "\n") != 9 || strings.Contains(got.stdout, "free") {
		t.Fatalf("export: %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	for _, want := range []string{"imported 9, known as that before 0, not imported 0\n", "imported 0, known as that before 9, not imported 0\n"} {
		if in := runWith(t, got.stdout, "recovery", "import", "--addr="+to.addr, "--namespace=payments", "--reason=exported", "-").ok(t); in != want {
			t.Errorf("import: %s, want %s", in, want)
		}
	}
	if again := to.run(t, "record", "export", "--namespace=payments"); again.stdout != got.stdout {
		t.Errorf("what was imported is\n%s\nand was\n%s", again.stdout, got.stdout)
	}
	there, err := dialAt(t, to.addr).Lookup(t.Context(), store.LookupRequest{Key: binary})
	if err != nil || there.Outcome == nil || there.Outcome.Digest() != outcome.Digest() {
		t.Errorf("the outcome there: %+v, %v", there, err)
	}
	if one := from.run(t, "record", "export", "--namespace=payments", "--entity=acme", "--scope=refund"); one.code != exitOK || one.stdout != "" {
		t.Errorf("of another scope: %+v", one)
	}
	if lost := from.run(t, "record", "export", "--namespace=nobody"); lost.code != exitFailed || !strings.Contains(lost.stderr, "NAMESPACE_UNKNOWN") {
		t.Errorf("of no namespace: %+v", lost)
	}
}

// A record that says nothing of the request is exported as one.
func TestExportLineWithoutAFingerprint(t *testing.T) {
	rec := &idemdv1.Record{Key: &idemdv1.Key{Id: "a"}, State: idemdv1.State_STATE_COMPLETED, Outcome: &idemdv1.Outcome{}}
	if line, why := exportLine(rec); why != "" || line.Fingerprint == nil {
		t.Errorf("of a claim without one: %+v, %s", line, why)
	}
	unknown := proto.CloneOf(rec)
	unknown.Fingerprint = &idemdv1.Fingerprint{Version: store.UnknownFingerprint.Version, Digest: []byte(store.UnknownFingerprint.Digest)}
	if line, why := exportLine(unknown); why != "" || line.Fingerprint != nil {
		t.Errorf("of one that was imported without: %+v, %s", line, why)
	}
}
