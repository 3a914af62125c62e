package control_test

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"sallyport/control"
)

// lined serves lines to a user.
func lined(t *testing.T, uid uint32) (c *control.Client, lines *control.Lines, s *http.Server) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	lines = &control.Lines{}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/line", lines.Handle([]uint32{uid}))
	s = control.NewServer(mux)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	c = control.NewClient(path)
	t.Cleanup(c.Close)
	return c, lines, s
}

// TestLineBreaks: when what breaks a line has returned, the line is not silent.
// Nobody has read from it.
func TestLineBreaks(t *testing.T) {
	tests := []struct {
		name string
		do   func(lines *control.Lines, s *http.Server) error
	}{
		{"broken", func(lines *control.Lines, _ *http.Server) error { lines.Break(); return nil }},
		{"closed", func(_ *control.Lines, s *http.Server) error { return s.Close() }},
		{"shut down", func(_ *control.Lines, s *http.Server) error { return s.Shutdown(t.Context()) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, lines, s := lined(t, uint32(os.Getuid()))
			open := make([]*control.Line, 3)
			for i := range open {
				var err error
				if open[i], err = c.Line(t.Context(), "/v1/line"); err != nil {
					t.Fatal(err)
				}
				defer open[i].Close()
				if !open[i].Silent() {
					t.Fatal("twin: a new line is not silent")
				}
			}
			if err := tt.do(lines, s); err != nil {
				t.Fatal(err)
			}
			for i, l := range open {
				if l.Silent() {
					t.Errorf("line %d is silent", i)
				}
			}
		})
	}
}

func TestLineAfterABreak(t *testing.T) {
	c, lines, _ := lined(t, uint32(os.Getuid()))
	lines.Break()
	l, err := c.Line(t.Context(), "/v1/line")
	if err != nil || !l.Silent() {
		t.Fatalf("Line = %v, silent %v", err, l.Silent())
	}
	if err := l.Close(); err != nil || l.Silent() {
		t.Errorf("closed: %v, silent %v", err, l.Silent())
	}
	if (*control.Line)(nil).Silent() {
		t.Error("no line is silent")
	}
}

// TestLineIsForItsUser: a stranger gets none.
func TestLineIsForItsUser(t *testing.T) {
	c, _, _ := lined(t, uint32(os.Getuid())+1)
	if l, err := c.Line(t.Context(), "/v1/line"); err == nil {
		t.Errorf("a stranger got a line: silent %v", l.Silent())
	}
	c, _, _ = lined(t, uint32(os.Getuid()))
	l, err := c.Line(t.Context(), "/v1/line")
	if err != nil {
		t.Fatalf("twin: %v", err)
	}
	_ = l.Close()
}
