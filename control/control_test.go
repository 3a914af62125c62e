package control_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/control"
)

var file = control.CellFile{
	Cell: "abcdefgh", Run: "r1", Index: 3, Sandbox: netip.MustParseAddr("10.213.0.50"), Gateway: netip.MustParseAddr("10.213.0.49"),
	Policy: "sha256:" + strings.Repeat("0", 64), Created: time.Unix(1, 0).UTC(),
	Grants: []control.Grant{{Credential: "c", Env: "KEY", Placeholder: "p", Place: control.Place{Type: "bearer", Header: "Authorization"}}},
}

func TestCellFilesAreReadStrictly(t *testing.T) {
	dir := t.TempDir()
	if err := file.Write(dir, os.Getgid()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(control.Path(dir, file.Cell))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		"unknown field": strings.Replace(string(whole), `"run"`, `"runs": 1, "run"`, 1),
		"cut off":       string(whole[:len(whole)/2]),
		"empty":         "",
		"another cell":  strings.Replace(string(whole), "abcdefgh", "hgfedcba", 1),
		"no run":        strings.Replace(string(whole), `"r1"`, `""`, 1),
		"no address":    strings.Replace(string(whole), `"10.213.0.50"`, `""`, 1),
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(control.Path(dir, "abcdefgh"), []byte(text), 0o640); err != nil {
				t.Fatal(err)
			}
			if f, err := control.Read(dir, "abcdefgh"); err == nil {
				t.Errorf("Read = %+v, want an error", f)
			}
		})
	}
	for _, cell := range []string{"", "../abcdefgh", "a/b", "a.b"} {
		if _, err := control.Read(dir, cell); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Read(%q) = %v, want a refusal of the name", cell, err)
		}
	}
	// The twin: what was written is read back, and one bad file does not hide it.
	if err := file.Write(dir, os.Getgid()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "badbadba.json"), []byte("{"), 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := control.ReadAll(dir)
	if err == nil || len(got) != 1 {
		t.Fatalf("ReadAll = %d files, %v", len(got), err)
	}
	if diff := cmp.Diff(&file, got[0], cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if err := errors.Join(control.Remove(dir, file.Cell), control.Remove(dir, file.Cell)); err != nil {
		t.Errorf("removing twice: %v", err)
	}
}

func TestAnIncompleteCellFileIsNotWritten(t *testing.T) {
	for _, f := range []control.CellFile{{}, {Cell: "a", Run: "r", Policy: "p"}, {Cell: "a", Sandbox: file.Sandbox, Policy: "p"}} {
		dir := t.TempDir()
		if err := f.Write(dir, os.Getgid()); err == nil {
			t.Errorf("Write(%+v) succeeded", f)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("Write left %v", left)
		}
	}
}

type in struct{ Name string }

// serve starts a server whose one operation only uid may call.
func serve(t *testing.T, uid uint32, f func(context.Context, in) (string, error)) *control.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /op", control.Handle([]uint32{uid}, f))
	s := control.NewServer(mux)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c := control.NewClient(path)
	t.Cleanup(func() {
		c.Close()
		_ = s.Close() // the error of Serve tells
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return c
}

func TestPeersAndRefusals(t *testing.T) {
	echo := func(_ context.Context, i in) (string, error) {
		switch i.Name {
		case "refused":
			return "", &control.Error{Status: http.StatusConflict, Reason: "limit", Text: "not now"}
		case "broken":
			return "", errors.New("it broke")
		}
		return "hello " + i.Name, nil
	}
	me := uint32(os.Getuid())
	var out string
	if err := serve(t, me+1, echo).Call(t.Context(), "/op", in{"x"}, &out); err == nil || out != "" {
		t.Errorf("another user's call: %q, %v, want a refusal", out, err)
	}
	c := serve(t, me, echo)
	var refusal *control.Error
	if err := c.Call(t.Context(), "/op", in{"refused"}, &out); !errors.As(err, &refusal) || refusal.Reason != "limit" || refusal.Status != http.StatusConflict {
		t.Errorf("a refusal came as %v", err)
	}
	if err := c.Call(t.Context(), "/op", in{"broken"}, &out); !errors.As(err, &refusal) || refusal.Status != http.StatusInternalServerError || refusal.Text != "it broke" {
		t.Errorf("an error came as %v", err)
	}
	if err := c.Call(t.Context(), "/op", map[string]string{"Nom": "x"}, &out); !errors.As(err, &refusal) || refusal.Status != http.StatusBadRequest {
		t.Errorf("an unknown field came as %v", err)
	}
	if err := c.Call(t.Context(), "/nothing", in{}, &out); err == nil {
		t.Error("an unknown operation succeeded")
	}
	if err := c.Call(t.Context(), "/op", in{"x"}, &out); err != nil || out != "hello x" {
		t.Errorf("Call = %q, %v", out, err)
	}
}
