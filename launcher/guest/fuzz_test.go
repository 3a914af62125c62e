package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport/launcher/guest"
)

// frame is one of the guest's, as the launcher may get it.
func frame(kind byte, at uint64, data []byte) []byte {
	b := binary.BigEndian.AppendUint64([]byte{kind}, at)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

const (
	started = 0x41 + iota
	stdout
	stderr
	credit
	end
	export
	done
)

func endOf(t testing.TB, e guest.End) []byte {
	t.Helper()
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

func TestTalkRefuses(t *testing.T) {
	ok := endOf(t, guest.End{Cause: guest.Exited})
	all := func(frames ...[]byte) []byte { return bytes.Join(frames, nil) }
	tests := []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, guest.ErrHungUp},
		{"half a header", []byte{started, 0, 0}, guest.ErrHungUp},
		{"half a frame", frame(started, 0, nil)[:12], guest.ErrHungUp},
		{"no end", frame(started, 1, nil), guest.ErrHungUp},
		{"no done", all(frame(started, 1, nil), frame(end, 2, ok)), guest.ErrHungUp},
		{"zero kind", frame(0, 1, nil), guest.ErrProtocol},
		{"the launcher's kind", frame(1, 1, nil), guest.ErrProtocol},
		{"output before the start", frame(stdout, 1, []byte("x")), guest.ErrProtocol},
		{"started twice", all(frame(started, 1, nil), frame(started, 2, nil)), guest.ErrProtocol},
		{"time runs backwards", all(frame(started, 9, nil), frame(stdout, 8, []byte("x"))), guest.ErrProtocol},
		{"negative time", frame(started, 1<<63, nil), guest.ErrProtocol},
		{"huge frame", frame(started, 1, nil)[:9], guest.ErrHungUp},
		{"frame over the bound", append(frame(started, 1, nil), stdout, 0, 0, 0, 0, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff), guest.ErrProtocol},
		{"more output than allowed", all(frame(started, 1, nil), frame(stdout, 2, make([]byte, 60)), frame(stderr, 3, make([]byte, 60))), guest.ErrProtocol},
		{"credit without input", all(frame(started, 1, nil), frame(credit, 2, []byte{0, 0, 0, 1})), guest.ErrProtocol},
		{"end without a start", frame(end, 1, ok), guest.ErrProtocol},
		{"end of no kind", all(frame(started, 1, nil), frame(end, 2, endOf(t, guest.End{}))), guest.ErrProtocol},
		{"not started, but it was", all(frame(started, 1, nil), frame(end, 2, endOf(t, guest.End{Cause: guest.NotStarted}))), guest.ErrProtocol},
		{"impossible status", all(frame(started, 1, nil), frame(end, 2, endOf(t, guest.End{Cause: guest.Exited, Exit: 256}))), guest.ErrProtocol},
		{"unknown field", all(frame(started, 1, nil), frame(end, 2, []byte(`{"cause":"exited","exit":0,"x":1}`))), guest.ErrProtocol},
		{"two values", all(frame(started, 1, nil), frame(end, 2, append(ok, ok...))), guest.ErrProtocol},
		{"end twice", all(frame(started, 1, nil), frame(end, 2, ok), frame(end, 3, ok)), guest.ErrProtocol},
		{"output after the end", all(frame(started, 1, nil), frame(end, 2, ok), frame(stdout, 3, nil)), guest.ErrProtocol},
		{"files that were not asked for", all(frame(started, 1, nil), frame(end, 2, ok), frame(export, 3, []byte("x"))), guest.ErrProtocol},
		{"good", all(frame(started, 1, nil), frame(stdout, 2, []byte("x")), frame(end, 3, ok), frame(done, 4, []byte("{}"))), nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			spec := base("true")
			spec.Output = 100
			_, err := guest.Talk(t.Context(), bytes.NewReader(test.in), discard{}, guest.Job{Spec: spec})
			if !errors.Is(err, test.want) {
				t.Errorf("Talk = %v, want %v", err, test.want)
			}
		})
	}
}

func TestTalkChecksItsSide(t *testing.T) {
	for name, mend := range map[string]func(*guest.Spec){
		"zero":            func(s *guest.Spec) { *s = guest.Spec{} },
		"no work":         func(s *guest.Spec) { s.Argv = nil },
		"work and look":   func(s *guest.Spec) { s.Look = []string{"/x"} },
		"all of nothing":  func(s *guest.Spec) { s.All = true },
		"no output limit": func(s *guest.Spec) { s.Output = 0 },
		"no deadline":     func(s *guest.Spec) { s.Deadline = 0 },
		"no bounds":       func(s *guest.Spec) { s.Export, s.Root = true, "/w" },
		"nobody to write": func(s *guest.Spec) { s.Files, s.Root, s.Bounds = true, "/w", guest.Bounds{Bytes: 1, Files: 1} },
	} {
		spec := base("true")
		mend(&spec)
		if _, err := guest.Talk(t.Context(), bytes.NewReader(nil), discard{}, guest.Job{Spec: spec}); err == nil || errors.Is(err, guest.ErrHungUp) {
			t.Errorf("%s: Talk = %v", name, err)
		}
	}
}

// Whatever comes over the line: no panic, no wait, and never more output or files
// than were asked for.
func FuzzTalk(f *testing.F) {
	ok := endOf(f, guest.End{Cause: guest.Exited})
	f.Add(bytes.Join([][]byte{
		frame(started, 1, nil), frame(stdout, 2, []byte("x")), frame(credit, 2, []byte{0, 0, 0, 1}), frame(end, 3, ok),
		frame(export, 4, make([]byte, 1024)), frame(done, 5, []byte(`{"skipped":["x"]}`)),
	}, nil))
	f.Add(frame(end, 1, endOf(f, guest.End{Cause: guest.NotStarted, Error: "x"})))
	f.Fuzz(func(t *testing.T, in []byte) {
		spec := base("true")
		spec.Output, spec.Input, spec.Export, spec.Root, spec.Bounds = 100, true, true, "/w", guest.Bounds{Bytes: 100, Files: 2}
		var output, files int64
		out, err := guest.Talk(context.Background(), bytes.NewReader(in), discard{}, guest.Job{
			Spec: spec, Input: bytes.NewReader(make([]byte, 10)),
			Output: func(_ guest.Stream, _ time.Duration, data []byte) { output += int64(len(data)) },
			Export: func(r io.Reader) (err error) { files, err = io.Copy(io.Discard, r); return err },
		})
		if output > 100 || files > 200000 {
			t.Errorf("%d octets of output, %d of files", output, files)
		}
		if err == nil && out.End.Cause == "" {
			t.Error("no error and no cause")
		}
	})
}

// Whatever is in a tar: nothing outside, nothing but plain files and directories,
// no more than the bounds.
func FuzzUnpack(f *testing.F) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o4755, Size: 3},
		{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc"},
		{Typeflag: tar.TypeReg, Name: "../x"},
	} {
		_ = w.WriteHeader(h)
		if h.Size > 0 {
			_, _ = w.Write([]byte("abc"))
		}
	}
	_ = w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		outer := t.TempDir()
		dir := filepath.Join(outer, "root")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		files, _ := guest.Unpack(bytes.NewReader(in), openRoot(t, dir), guest.Bounds{Bytes: 1000, Files: 5}, false)
		var size int64
		count := 0
		err := filepath.WalkDir(outer, func(path string, d fs.DirEntry, err error) error {
			info, statErr := d.Info()
			if err := errors.Join(err, statErr); err != nil {
				return err
			}
			if path != outer && path != dir && filepath.Dir(path) == outer {
				t.Errorf("made %s", path)
			}
			if d.Type() != 0 && !d.IsDir() || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
				t.Errorf("%s is %v", path, info.Mode())
			}
			if !d.IsDir() {
				count++
				size += info.Size()
			}
			return nil
		})
		if err != nil || size > 1000 || count > 5 || len(files) > count {
			t.Errorf("%d files of %d octets, %d told, %v", count, size, len(files), err)
		}
	})
}
