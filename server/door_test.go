package server

import (
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

func TestDoorClosesWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newMemory()) // for its log and metrics
		defer r.close()
		lis := bufconn.Listen(1)
		defer lis.Close()
		let := make(chan net.Conn, 10)
		go func() {
			d := newDoor(lis, 2, 0, r.config.Logger, r.config.Metrics)
			for {
				c, err := d.Accept()
				if err != nil {
					return
				}
				let <- c
			}
		}()
		// knock reports whether the door let a connection in.
		knock := func() (net.Conn, bool) {
			outside, err := lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = outside.Close() }) // the other end is closed already, or not
			synctest.Wait()
			select {
			case inside := <-let:
				return inside, true
			default:
			}
			if _, err := outside.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // the very error
				t.Errorf("reading from a refused connection: %v", err)
			}
			return nil, false
		}
		refusals := func(count float64, lines int) {
			t.Helper()
			if got := r.value("idemd_refused_connections_total"); got != count {
				t.Errorf("counted %v refused connections, want %v", got, count)
			}
			if got := strings.Count(r.log.String(), "too many are open"); got != lines {
				t.Errorf("%d lines about it, want %d:\n%s", got, lines, r.log)
			}
		}

		first, ok1 := knock()
		second, ok2 := knock()
		if !ok1 || !ok2 {
			t.Fatal("refused though there was room")
		}
		for range 3 {
			if _, ok := knock(); ok {
				t.Error("let in though it is full")
			}
		}
		refusals(3, 1)
		time.Sleep(doorSilence)
		if _, ok := knock(); ok {
			t.Error("let in though it is full")
		}
		refusals(4, 2)

		for range 2 { // closing twice makes room for one
			_ = first.Close()
		}
		third, ok := knock()
		if !ok {
			t.Error("refused though one has left")
		}
		if _, ok := knock(); ok {
			t.Error("let in though it is full again")
		}
		_, _ = second.Close(), third.Close()
	})
}
