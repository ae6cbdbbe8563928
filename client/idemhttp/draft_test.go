package idemhttp_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
)

// The examples of draft-ietf-httpapi-idempotency-key-header, with the address that they have.
var docs = idemhttp.Docs("https://developer.example.com/idempotency")

func TestDraftKeyIsMissing(t *testing.T) {
	guarded(t, idemhttp.Policy{Required: true}, func(r *rig) {
		got := refused(t, r.send(request(http.MethodPost, "/orders/7/pay", "42 EUR")), http.StatusBadRequest, "KEY_REQUIRED")
		equal(t, "problem", got, problem{
			Type: "https://developer.example.com/idempotency", Title: "Idempotency-Key is missing",
			Detail: "This operation is idempotent and it requires correct usage of Idempotency Key.", Reason: "KEY_REQUIRED",
		})
		r.ran(0)
		r.kinds(client.EventNoKey)
	}, docs)
}

func TestDraftKeyIsAlreadyUsed(t *testing.T) {
	guarded(t, idemhttp.Policy{Required: true}, func(r *rig) {
		r.ok(r.once(), http.StatusCreated, "receipt-1", false)
		other := request(http.MethodPost, "/orders/7/pay", "43 EUR", idemhttp.HeaderKey, key1)
		got := refused(t, r.send(other), http.StatusUnprocessableEntity, "FINGERPRINT_MISMATCH")
		equal(t, "problem", got, problem{
			Type: "https://developer.example.com/idempotency", Title: "Idempotency-Key is already used",
			Detail: "This operation is idempotent and it requires correct usage of Idempotency Key. Idempotency Key MUST not be reused across different payloads of this operation.",
			Reason: "FINGERPRINT_MISMATCH",
		})
		r.ran(1)
		r.kinds(client.EventGranted, client.EventRecorded, client.EventMismatch)
	}, docs)
}

func TestDraftRequestIsOutstanding(t *testing.T) {
	guarded(t, idemhttp.Policy{Required: true}, func(r *rig) {
		done := make(chan struct{})
		r.does(func(http.ResponseWriter, *http.Request) { <-done })
		go r.once()
		synctest.Wait()
		got := refused(t, r.once(), http.StatusConflict, "KEY_IN_PROGRESS")
		equal(t, "problem", got, problem{
			Type: "https://developer.example.com/idempotency", Title: "A request is outstanding for this Idempotency-Key",
			Detail: "A request with the same Idempotency-Key for the same operation is being processed or is outstanding.",
			Reason: "KEY_IN_PROGRESS",
		})
		close(done)
		synctest.Wait()
		r.ran(1)
		r.ok(r.once(), http.StatusOK, "", true)
	}, docs)
}

// "The resource server SHOULD respond with the result of the previously completed operation,
// success or an error."
func TestDraftRetry(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusCreated, http.StatusSeeOther, http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity} {
		guarded(t, idemhttp.Policy{Required: true}, func(r *rig) {
			r.answers(status, "answer")
			r.ok(r.once(), status, "answer", false)
			r.answers(http.StatusTeapot, "another")
			r.ok(r.once(), status, "answer", true)
			r.ran(1)
			r.kinds(client.EventGranted, client.EventRecorded, client.EventReplayed)
		})
	}
}

// Without documentation of its own a server links to the draft's.
func TestDraftIsLinked(t *testing.T) {
	guarded(t, idemhttp.Policy{Required: true}, func(r *rig) {
		got := refused(t, r.post(`"a`), http.StatusBadRequest, "INVALID_ARGUMENT")
		equal(t, "type", got.Type, "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/")
	})
}

// The key is a string of structured fields; one without quotes is taken as it is.
func TestKeySyntax(t *testing.T) {
	long := strings.Repeat("a", 255)
	for field, id := range map[string]string{ // empty: malformed
		`"8e03978e-40d5-43e8-bc93-6894a57f9324"`: "8e03978e-40d5-43e8-bc93-6894a57f9324", // the draft's
		`8e03978e-40d5-43e8-bc93-6894a57f9324`:   "8e03978e-40d5-43e8-bc93-6894a57f9324",
		`  "order 7"  `:                          "order 7",
		`"a\"b\\c"`:                              `a"b\c`,
		`"a, b"`:                                 "a, b",
		`"a";v=1`:                                "a", // parameters mean nothing here
		`order-7`:                                "order-7",
		`order/7=é`:                              "",
		`order 7`:                                "",
		`a,b`:                                    "",
		`a"b`:                                    "",
		`"a`:                                     "",
		`"a" x`:                                  "",
		`"a", "b"`:                               "",
		`"a", "a"`:                               "a", // a proxy made one field of two
		`"a","a" , "a";v=1`:                      "a",
		`"a", a`:                                 "",
		`"a", ("a")`:                             "",
		`"a", `:                                  "",
		`"a, a", "a", "a"`:                       "",
		`"é"`:                                    "",
		`"\a"`:                                   "",
		`""`:                                     "",
		` `:                                      "",
		"\"a\tb\"":                               "",
		`"` + long + `"`:                         long,
		`"` + long + `a"`:                        "",
		long:                                     long,
		long + "a":                               "",
		`:YWJj:`:                                 ":YWJj:",
		`1234`:                                   "1234",
		`"Order"`:                                "Order",
		`"order"`:                                "order",
		`"e` + "\u0301" + `"`:                    "",
	} {
		guarded(t, idemhttp.Policy{Required: true}, func(r *rig) {
			got := r.post(field)
			if id == "" {
				refused(t, got, http.StatusBadRequest, "INVALID_ARGUMENT")
				r.ran(0)
				r.kinds(client.EventRefused)
				return
			}
			r.ok(got, http.StatusCreated, "receipt-1", false)
			key := keyOf(key1)
			key.ID = id
			if rec, err := r.store.memory.InspectRecord(t.Context(), key); err != nil || rec.Record == nil {
				t.Errorf("%s: no record of %q: %v", field, id, err)
			}
		})
	}
}

// "Clients MUST NOT include more than one Idempotency-Key header field in the same request."
func TestTwoKeys(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		refused(t, r.post(`"a"`, idemhttp.HeaderKey, `"b"`), http.StatusBadRequest, "INVALID_ARGUMENT")
		r.ran(0)
		refused(t, r.post(`"a"`, idemhttp.HeaderKey, `"a`), http.StatusBadRequest, "INVALID_ARGUMENT")
		refused(t, r.post(`a`, idemhttp.HeaderKey, ``), http.StatusBadRequest, "INVALID_ARGUMENT")
		r.ran(0)
		r.ok(r.post(`"a"`, idemhttp.HeaderKey, `"a"`), http.StatusCreated, "receipt-1", false) // a proxy doubled it
		r.ok(r.post(`"a"`, idemhttp.HeaderKey, `a`), http.StatusCreated, "receipt-1", true)    // in its own way
		r.ok(r.post(` a`, idemhttp.HeaderKey, `"a";v=1`), http.StatusCreated, "receipt-1", true)
		r.ok(r.post(`a`), http.StatusCreated, "receipt-1", true) // with quotes and without it is one key
		r.ran(1)
	})
}
