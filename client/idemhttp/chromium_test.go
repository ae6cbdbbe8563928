package idemhttp_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// page pays once: a fetch that fails is made again under the same key, as is one that is told to
// wait. It tells the server what came of it.
const page = `<!doctype html><script>
async function pay(key) {
  for (let tries = 1; tries <= 8; tries++) {
    try {
      const r = await fetch('/orders/7/pay', {method: 'POST', body: '42 EUR', headers: {'Idempotency-Key': '"' + key + '"'}});
      if (r.status !== 409 && r.status !== 503) return 'fetched ' + tries + ' times: ' + r.status + ' ' + await r.text() + ' ' + r.headers.get('Idempotency-Replayed');
    } catch (e) {}
    await new Promise(done => setTimeout(done, 50));
  }
  return 'gave up';
}
pay(crypto.randomUUID()).then(result => fetch('/done', {method: 'PUT', body: result}));
</script>`

// TestChromium has a real browser pay through a proxy that breaks connections after requests were
// carried out: with the first the fetch fails or the browser itself sends the request again, and
// either way there is one effect.
func TestChromium(t *testing.T) {
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium here: apt-get install chromium")
	}
	s := newSite(t)
	done := make(chan string, 1)
	s.mux.HandleFunc("GET /page", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) })
	s.mux.HandleFunc("PUT /done", func(_ http.ResponseWriter, r *http.Request) {
		result, _ := io.ReadAll(r.Body)
		done <- string(result)
	})
	c := newCutter(t, s, 3)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	browser := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-port=0", c.url()+"/page") // without the port it ends when the page is loaded
	browser.Cancel = func() error { return browser.Process.Signal(os.Interrupt) } // so that all of its processes end
	browser.WaitDelay = 10 * time.Second
	if err := browser.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case result := <-done:
		t.Logf("%s; 4 requests came", result) // the others were sent again by the browser itself
		if !strings.HasSuffix(result, ": 201 receipt-1 true") {
			t.Errorf("the page got %q", result)
		}
	case <-ctx.Done():
		t.Error("the page has not said what came of it")
	}
	cancel()
	_ = browser.Wait() // it was killed
	s.ran(1)
	c.came(t, 4)
}
