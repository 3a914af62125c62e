package control_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/control"
)

// echoes serves one operation that says its input back.
func echoes(t *testing.T) (path string, s *http.Server) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	uid := uint32(os.Getuid())
	mux := http.NewServeMux()
	mux.Handle("POST /v1/echo", control.Handle([]uint32{uid}, func(_ context.Context, s string) (string, error) {
		if s == "no" {
			return "", &control.Error{Status: http.StatusForbidden, Reason: "why", Text: "refused"}
		}
		return s, nil
	}))
	s = control.NewServer(mux)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return path, s
}

// TestCallsShareStreams: long and short, refused and not, one after the other
// and at the same time.
func TestCallsShareStreams(t *testing.T) {
	path, _ := echoes(t)
	c := control.NewClient(path)
	t.Cleanup(c.Close)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			for i := range 20 {
				in := strings.Repeat("x", i*i*i*100)
				var out string
				if err := c.Call(t.Context(), "/v1/echo", in, &out); err != nil || out != in {
					errs <- errors.Join(err, errors.New("not what was sent"))
					return
				}
				refusal, ok := errors.AsType[*control.Error](c.Call(t.Context(), "/v1/echo", "no", &out))
				if !ok || refusal.Status != http.StatusForbidden || refusal.Reason != "why" || refusal.Text != "refused" {
					errs <- errors.New("not refused")
					return
				}
			}
			errs <- nil
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if refusal, ok := errors.AsType[*control.Error](c.Call(t.Context(), "/v1/other", "x", nil)); !ok || refusal.Status != http.StatusNotFound {
		t.Errorf("an operation that there is not: %v", refusal)
	}
}

// TestServersEndStreams: an idle stream keeps no server from ending, and the
// next call says that nobody is there.
func TestServersEndStreams(t *testing.T) {
	path, s := echoes(t)
	c := control.NewClient(path)
	t.Cleanup(c.Close)
	if err := c.Call(t.Context(), "/v1/echo", "x", nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown = %v", err)
	}
	if err := c.Call(t.Context(), "/v1/echo", "x", nil); err == nil {
		t.Error("a call to nobody succeeded")
	}
}

func TestCallsEndWithTheirContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path) // and nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	c := control.NewClient(path)
	done := make(chan error, 1)
	go func() { done <- c.Call(ctx, "/v1/echo", "x", nil) }()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Call = %v, want cancelled", err)
	}
}

// TestBrokenFramesEndTheStream: nothing is answered.
func TestBrokenFramesEndTheStream(t *testing.T) {
	path, _ := echoes(t)
	head := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	for name, frame := range map[string]string{
		"too long":        head(1<<31) + "x",
		"empty":           head(0),
		"no operation":    head(3) + "\x09ab",
		"two at a time":   strings.Repeat(head(11)+"\x08/v1/echo\"\"", 2),
		"cut off":         head(100) + "\x08/v1/echo",
		"HTTP in between": "POST /v1/echo HTTP/1.1\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ready := make([]byte, 4)
			_, err = io.WriteString(conn, "POST /v1/stream HTTP/1.1\r\nHost: control\r\nTransfer-Encoding: chunked\r\n\r\n")
			if err == nil {
				_, err = io.ReadFull(conn, ready)
			}
			if err != nil || string(ready) != head(0) {
				t.Fatalf("ready %q, %v", ready, err)
			}
			if _, err := io.WriteString(conn, frame); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(conn); len(b) > 0 {
				t.Errorf("answered %q", b)
			}
		})
	}
}
