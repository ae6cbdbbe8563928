package idemhttp_test

import (
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/idemd/idemd/client"
	"github.com/idemd/idemd/client/idemhttp"
	"github.com/idemd/idemd/store"
)

const formType = "application/x-www-form-urlencoded"

// aForm makes a body, and says its type.
type aForm func(amount string) (body, contentType string)

func encoded(amount string) (body, contentType string) { return "csrf=t&amount=" + amount, formType }

func parts(amount string) (body, contentType string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.SetBoundary("boundary") // a repeat sends the same bytes
	_ = w.WriteField("csrf", "t")
	_ = w.WriteField("amount", amount)
	_ = w.Close()
	return b.String() + "an epilogue", w.FormDataContentType()
}

func jsonBody(amount string) (body, contentType string) {
	return `{"amount":` + amount + `}` + "\n{}", "application/json"
}

// form sends an amount as a client does that knows how long its body is, or not.
func (form aForm) request(amount string, length bool) *http.Request {
	body, contentType := form(amount)
	var reader io.Reader = strings.NewReader(body)
	if !length {
		reader = io.MultiReader(reader)
	}
	req := httptest.NewRequest(http.MethodPost, "/orders/7/pay", reader)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set(idemhttp.HeaderKey, key1)
	return req
}

// What is outside of the guard and reads the body takes it from the guard, which sees then the
// same empty body in every request: nothing runs.
func TestBodyReadOutside(t *testing.T) {
	formValue := func(r *http.Request) { _ = r.FormValue("csrf") }
	for name, test := range map[string]struct {
		form    aForm
		outside func(*http.Request)
		only    bool // with a length
	}{
		"form": {encoded, formValue, false},
		"large form": {func(amount string) (string, string) {
			return "amount=" + amount + strings.Repeat("1", 10<<20), formType
		}, formValue, false},
		"multipart": {parts, formValue, false},
		"parts": {parts, func(r *http.Request) {
			if m, err := r.MultipartReader(); err == nil {
				_, _ = m.NextPart()
			}
		}, false},
		"all":       {jsonBody, func(r *http.Request) { _, _ = io.ReadAll(r.Body) }, false},
		"some":      {jsonBody, func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 8)) }, true},
		"decoded":   {jsonBody, func(r *http.Request) { var v any; _ = json.NewDecoder(r.Body).Decode(&v) }, false},
		"none left": {jsonBody, func(r *http.Request) { r.Body = http.NoBody }, false},
		"nil":       {jsonBody, func(r *http.Request) { r.Body = nil }, false},
	} {
		for _, length := range []bool{true, false} {
			if test.only && !length {
				continue
			}
			guarded(t, idemhttp.Policy{FailOpen: true, MaxBody: 20 << 20}, func(r *rig) {
				for _, amount := range []string{"5", "500000"} {
					req := test.form.request(amount, length)
					test.outside(req)
					got := r.send(req)
					switch {
					case got.Code == http.StatusLengthRequired && !length:
						refused(t, got, http.StatusLengthRequired, "INVALID_ARGUMENT")
					case got.Code != http.StatusInternalServerError:
						t.Errorf("%s, its length known: %v: got %d %s", name, length, got.Code, got.Body)
					}
					if !strings.Contains(got.Body.String(), "outside of the guard") {
						t.Errorf("%s: %s", name, got.Body)
					}
				}
				r.ran(0)
				r.kinds(client.EventRefused, client.EventRefused)
			})
		}
	}
}

// A server closes the body for whoever closes it.
func TestBodyClosedOutside(t *testing.T) {
	s := newSite(t)
	inner := s.mux
	s.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
		inner.ServeHTTP(w, r)
	})
	if got := s.post(t.Context(), key1); got.status != http.StatusInternalServerError || !strings.Contains(got.body, "outside of the guard") {
		t.Errorf("got %+v", got)
	}
	s.ran(0)
}

// A bound that is outside of the guard is told of as the guard's own.
func TestMaxBytesOutside(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		for _, length := range []bool{true, false} {
			got := httptest.NewRecorder()
			http.MaxBytesHandler(r.mux, 4).ServeHTTP(got, aForm(jsonBody).request("5", length))
			equal(t, "title", refused(t, got, http.StatusRequestEntityTooLarge, "INVALID_ARGUMENT").Title, "Request body is too large")
		}
		r.ran(0)
	})
}

// What reads the body and gives it back takes nothing; nor does who asks for a field that is not
// in the body.
func TestBodyLeftOutside(t *testing.T) {
	for name, test := range map[string]struct {
		form    aForm
		outside func(*http.Request)
	}{
		"given back": {encoded, func(r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			_ = r.FormValue("csrf")
			r.Body = io.NopCloser(bytes.NewReader(b))
		}},
		"no form":  {jsonBody, func(r *http.Request) { _ = r.FormValue("csrf") }},
		"unpacked": {jsonBody, func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("7")), -1 }},
	} {
		for _, length := range []bool{true, false} {
			guarded(t, idemhttp.Policy{}, func(r *rig) {
				for _, replayed := range []bool{false, true} {
					req := test.form.request("5", length)
					test.outside(req)
					r.ok(r.send(req), http.StatusCreated, "receipt-1", replayed)
				}
				r.ran(1)
				if name == "unpacked" {
					return
				}
				req := test.form.request("500000", length)
				test.outside(req)
				refused(t, r.send(req), http.StatusUnprocessableEntity, "FINGERPRINT_MISMATCH")
			})
		}
	}
}

// Owner may look into the body, and the guard and the handler find all of it.
func TestOwnerReadsTheBody(t *testing.T) {
	for name, owner := range map[string]func(*http.Request) (string, error){
		"form": func(r *http.Request) (string, error) { return "c" + r.FormValue("csrf"), nil },
		"some": func(r *http.Request) (string, error) { _, err := r.Body.Read(make([]byte, 2)); return "ct", err },
		"close": func(r *http.Request) (string, error) {
			_, err := io.ReadAll(r.Body)
			_ = r.Body.Close()
			return "ct", err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, length := range []bool{true, false} {
				r := newRig(t, idemhttp.Policy{}, idemhttp.Owner(owner))
				server := httptest.NewServer(r.mux)
				r.does(func(w http.ResponseWriter, req *http.Request) {
					body, err := io.ReadAll(req.Body)
					values, _ := url.ParseQuery(string(body))
					if attempt, _ := client.AttemptFrom(req.Context()); err != nil || attempt.Key.Entity != "ct" || req.FormValue("amount") != values.Get("amount") && name == "form" {
						t.Errorf("read with %v, of %q", err, attempt.Key.Entity)
					}
					_, _ = w.Write(body)
				})
				for range 2 {
					got := sent(server.Client(), over(server, aForm(encoded).request("5", length)))
					if body, _ := encoded("5"); got.status != http.StatusOK || got.body != body {
						t.Errorf("got %+v", got)
					}
				}
				if got := sent(server.Client(), over(server, aForm(encoded).request("500000", length))); got.status != http.StatusUnprocessableEntity {
					t.Errorf("another amount is answered %+v", got)
				}
				r.ran(1)
				server.Close()
			}
		})
	}
}

// over makes a request for a server of one that was made for a handler.
func over(s *httptest.Server, r *http.Request) *http.Request {
	r.URL, _ = url.Parse(s.URL + r.RequestURI)
	r.RequestURI = ""
	return r
}

// Nothing of a body of unknown length may be an empty body, or one that was taken.
func TestEmptyBody(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		refused(t, r.send(aForm(func(string) (string, string) { return "", "" }).request("", false)), http.StatusLengthRequired, "INVALID_ARGUMENT")
		r.ok(r.send(request("POST", "/orders/7/pay", "", idemhttp.HeaderKey, key1)), http.StatusCreated, "receipt-1", false)
	})
	guarded(t, idemhttp.Policy{}, func(r *rig) { // nothing is blocked
		r.ok(r.send(aForm(func(string) (string, string) { return "", "" }).request("", false)), http.StatusCreated, "receipt-1", false)
	}, idemhttp.Observe())
}

// What a handler unpacks into files is removed when it is done, as net/http does that knows only the
// request outside of the guard.
func TestFilesOfForms(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("f", "f.bin")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write(make([]byte, 11<<20)) // net/http keeps 10 MiB in memory, beside what is asked for
	_ = w.Close()
	for _, how := range []string{"returns", "panics", "acts without a guard"} {
		guarded(t, idemhttp.Policy{MaxBody: 64 << 20, FailOpen: true}, func(r *rig) {
			if how == "acts without a guard" {
				r.store.fail("claim", store.ErrUnavailable)
			}
			r.does(func(_ http.ResponseWriter, req *http.Request) {
				if err := req.ParseMultipartForm(1 << 10); err != nil {
					t.Error(err)
				}
				equal(t, "files while it acts", len(temporary(t)), 1)
				if how == "panics" {
					panic(how)
				}
			})
			func() {
				defer func() { _ = recover() }()
				r.send(request("POST", "/orders/7/pay", form.String(), idemhttp.HeaderKey, key1, "Content-Type", w.FormDataContentType()))
			}()
			r.ran(1)
			equal(t, how+": files left", len(temporary(t)), 0)
		})
	}
}

func temporary(t *testing.T) []os.DirEntry {
	t.Helper()
	files, err := os.ReadDir(os.TempDir())
	if err != nil {
		t.Error(err)
	}
	return files
}

// A guard of other keys inside finds all of what the guard outside and its Owner have read.
func TestBodyInTwoGuards(t *testing.T) {
	guarded(t, idemhttp.Policy{}, func(r *rig) {
		outside, err := idemhttp.NewGuard(r.store, idemhttp.Owner(func(r *http.Request) (string, error) { return "c" + r.FormValue("csrf"), nil }))
		if err != nil {
			t.Fatal(err)
		}
		inner := r.mux
		r.mux = http.NewServeMux()
		r.mux.Handle("/", outside.Handler(inner, idemhttp.Policy{}))
		r.ok(r.send(aForm(encoded).request("5", false)), http.StatusCreated, "receipt-1", false)
		r.kinds(client.EventGranted, client.EventRecorded)
	})
}
