package proxy

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestAllIsSaidOverH2: a client may end its half of a stream with its first octets. What
// comes after them is the end, and no deadline fails on it.
func TestAllIsSaidOverH2(t *testing.T) {
	req := httptest.NewRequest(http.MethodConnect, "http://any.test", strings.NewReader("all"))
	door, _ := net.Pipe()
	c := newH2Stream(door, httptest.NewRecorder(), req)
	b := make([]byte, 8)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "all" {
		t.Fatalf("read %q, %v", b[:n], err)
	}
	<-c.read // the end is there
	for _, at := range []time.Time{time.Now().Add(time.Minute), noDeadline} {
		if err := c.SetReadDeadline(at); err != nil {
			t.Errorf("a deadline at the end: %v", err)
		}
	}
	if n, err := c.Read(b); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d octets, %v", n, err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := c.SetReadDeadline(noDeadline); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a deadline after Close: %v, want %v", err, net.ErrClosed)
	}
}
