package idemhttp_test

import (
	"encoding/hex"
	"net/http"
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
)

// Vectors for other languages. They were computed by another program.
func TestFingerprint(t *testing.T) {
	for name, test := range map[string]struct {
		fields  []string // nil: the default
		request *http.Request
		version uint32
		digest  string
	}{
		"no fields": {
			nil, request("POST", "/orders/7/pay", "42 EUR"),
			1276539537, "f3a3863188c23e95df0475459fc7ef25f9b79233bf1b20ddd74a0669371b7362",
		},
		"as it was sent": {
			nil, request("POST", "/orders/%37/pay?a=1&b=%20", "", "Content-Type", "application/json"),
			1276539537, "737e43bb09489a8cd92c6480694a21c37d309d32107105d5cb95c4ab8a1a91b2",
		},
		"another list": {
			[]string{"x-amount", "content-type"}, request("POST", "/orders/7/pay", "\x00\xff", "Content-Type", "a", "Content-Type", "b", "X-Amount", "42"),
			1928595920, "dcd74af8af044fc7c8a9f88147cec5165c78c1fabc3de931566402a491508467",
		},
	} {
		t.Run(name, func(t *testing.T) {
			guarded(t, idemhttp.Policy{Fingerprint: test.fields}, func(r *rig) {
				test.request.Header.Set(idemhttp.HeaderKey, key1)
				r.send(test.request)
				got := r.record().Fingerprint
				if got.Version != test.version || hex.EncodeToString([]byte(got.Digest)) != test.digest {
					t.Errorf("got %d %x", got.Version, got.Digest)
				}
			})
		})
	}
}

// Case 4: while the list of fields is changed, what cannot be compared is counted and no mismatch.
func TestAnotherListOfFields(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		r.once()
		guard, err := idemhttp.NewGuard(r.store, idemhttp.NoOwner(), idemhttp.OnEvent(r.told))
		if err != nil {
			t.Fatal(err)
		}
		r.mux = http.NewServeMux()
		r.mux.Handle("POST /orders/{id}/pay", guard.Handler(http.HandlerFunc(r.serve), idemhttp.Policy{Fingerprint: []string{"Content-Type", "X-Amount"}}))
		r.ok(r.once(), http.StatusCreated, "receipt-1", true)
		r.kinds(client.EventGranted, client.EventRecorded, client.EventReplayed, client.EventIncomparable)
	})
}
