package idemhttp_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemd/idemd/client/idemhttp"
)

// Cases 28 to 30: status, listed header fields and body come back; credentials never.
func TestReplay(t *testing.T) {
	guarded(t, idemhttp.Policy{Replay: []string{"x-receipt"}}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) {
			for _, pair := range [][2]string{
				{"Content-Type", "application/json"}, {"Content-Encoding", "br"}, {"Location", "/payments/1"}, {"Etag", `"1"`},
				{"X-Receipt", "a"}, {"X-Receipt", "b"}, {"X-Other", "c"}, {"Set-Cookie", "s=1"}, {"Authorization", "secret"},
			} {
				w.Header().Add(pair[0], pair[1])
			}
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("X-Receipt", "too late")
			_, _ = w.Write([]byte{0, 0xff, '\n'})
			_, _ = w.Write([]byte{1})
		})
		first, again := r.once(), r.once()
		r.ok(first, http.StatusCreated, "\x00\xff\n\x01", false)
		r.ok(again, http.StatusCreated, "\x00\xff\n\x01", true)
		equal(t, "first header", first.Result().Header, http.Header{
			"Content-Type": {"application/json"}, "Content-Encoding": {"br"}, "Location": {"/payments/1"}, "Etag": {`"1"`},
			"X-Receipt": {"a", "b"}, "X-Other": {"c"}, "Set-Cookie": {"s=1"}, "Authorization": {"secret"},
		})
		equal(t, "header of the repeat", again.Result().Header, http.Header{
			"Content-Type": {"application/json"}, "Content-Encoding": {"br"}, "Location": {"/payments/1"}, "Etag": {`"1"`},
			"X-Receipt": {"a", "b"}, idemhttp.HeaderReplayed: {"true"},
		})
		for _, entry := range r.record().Outcome.Header {
			if name := strings.ToLower(entry.Name); name == "set-cookie" || name == "authorization" || name == "x-other" {
				t.Errorf("%s is stored", name)
			}
		}
	})
}

// What is outside the guard sets header fields before it, on repeats too.
func TestReplayBesideWhatIsOutside(t *testing.T) {
	guarded(t, idemhttp.Policy{Replay: []string{"X-Version"}}, func(r *rig) {
		r.does(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Version", "of the handler") })
		outside := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("X-Version", "outside")
			w.Header().Set("X-Request-Id", "of this request")
			r.mux.ServeHTTP(w, req)
		})
		for range 2 {
			got := httptest.NewRecorder()
			outside.ServeHTTP(got, request("POST", "/orders/7/pay", "42 EUR", idemhttp.HeaderKey, key1))
			equal(t, "X-Version", got.Header().Values("X-Version"), []string{"of the handler"})
			equal(t, "X-Request-Id", got.Header().Values("X-Request-Id"), []string{"of this request"})
		}
		r.ran(1)
	})
}

// compressed is what compresses for those who take it, as many do: it says so before the handler runs.
func compressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Language", r.Header.Get("Accept-Language"))
		if r.Header.Get("Accept-Encoding") != "gzip" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		gz := gzip.NewWriter(w)
		defer gz.Close()
		next.ServeHTTP(writer{w, gz}, r)
	})
}

type writer struct {
	http.ResponseWriter
	to io.Writer
}

func (w writer) Write(p []byte) (int, error) { return w.to.Write(p) }

// What is outside says of a response is about that one alone: a repeat is compressed if it is, and the
// same for every other field.
func TestReplayOfWhatOutsideSays(t *testing.T) {
	for _, accept := range [][2]string{{"gzip", ""}, {"", "gzip"}, {"gzip", "gzip"}} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.does(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "charged") })
			for i, language := range []string{"en", "fr"} {
				got := httptest.NewRecorder()
				compressed(r.mux).ServeHTTP(got, request("POST", "/orders/7/pay", "42 EUR", idemhttp.HeaderKey, key1,
					"Accept-Encoding", accept[i], "Accept-Language", language))
				equal(t, "Content-Encoding", got.Header().Get("Content-Encoding"), accept[i])
				equal(t, "Content-Language", got.Header().Get("Content-Language"), language)
				equal(t, "Content-Type", got.Header().Get("Content-Type"), "text/plain; charset=utf-8")
				body := io.Reader(got.Body)
				if accept[i] != "" {
					var err error
					if body, err = gzip.NewReader(got.Body); err != nil {
						t.Fatal(err)
					}
				}
				if text, err := io.ReadAll(body); string(text) != "charged" || err != nil {
					t.Errorf("%q: got %q, %v", accept, text, err)
				}
			}
			r.ran(1)
		})
	}
}

// A repeat gets what belongs to the status, too.
func TestReplayOfWhatTheStatusNeeds(t *testing.T) {
	for status, field := range map[int][2]string{
		http.StatusMethodNotAllowed: {"Allow", "GET, HEAD"}, http.StatusPartialContent: {"Content-Range", "bytes 0-1/5"},
	} {
		guarded(t, idemhttp.Policy{}, func(r *rig) {
			r.does(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(field[0], field[1])
				w.WriteHeader(status)
			})
			for range 2 {
				equal(t, field[0], r.once().Header().Get(field[0]), field[1])
			}
			r.ran(1)
		})
	}
}

func TestReplayOfWhatIsLeftOut(t *testing.T) {
	for name, test := range map[string]struct {
		do     http.HandlerFunc
		status int
		kind   string
		body   string
	}{
		"nothing":      {func(http.ResponseWriter, *http.Request) {}, http.StatusOK, "", ""},
		"no body":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, http.StatusNoContent, "", ""},
		"no type":      {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, http.StatusOK, "text/html; charset=utf-8", "<html>"},
		"type refused": {func(w http.ResponseWriter, _ *http.Request) { w.Header()["Content-Type"] = nil; fmt.Fprint(w, "x") }, http.StatusOK, "", "x"},
		"odd type": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "json")
			fmt.Fprint(w, "x")
		}, http.StatusOK, "json", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.does(test.do)
			for _, replayed := range []string{"", "true"} {
				got := s.post(t.Context(), key1)
				if got.status != test.status || got.header.Get("Content-Type") != test.kind || got.body != test.body || got.header.Get(idemhttp.HeaderReplayed) != replayed {
					t.Errorf("got %+v, want %d, type %q, %q", got, test.status, test.kind, test.body)
				}
			}
			s.ran(1)
		})
	}
}
