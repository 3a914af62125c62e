package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/launcher/guest"
)

// The guest must be process 1. In these tests it is, of a process namespace of
// its own: the test binary starts itself in one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guest" {
		os.Exit(guest.Main(context.Background(), guest.Config{
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now,
		}))
	}
	os.Exit(m.Run())
}

// start runs a guest with a /proc of its own.
func start(t *testing.T, prefix string) (r io.Reader, w io.WriteCloser, cmd *exec.Cmd) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command("/bin/sh", "-c", `mount -t proc proc /proc && exec `+prefix+` "$0" guest`, self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "IMAGE=yes", "GONE=yes"}
	cmd.Stderr = os.Stderr
	w, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, err = cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Close()
		_, _ = io.Copy(io.Discard, r)
		_ = cmd.Wait() // its exit status is the work's
	})
	return r, w, cmd
}

func base(argv ...string) guest.Spec {
	return guest.Spec{Argv: argv, Output: 1 << 20, Deadline: 20 * time.Second, Grace: 200 * time.Millisecond}
}

type heard struct {
	stdout, stderr bytes.Buffer
	outcome        guest.Outcome
	err            error
}

func talk(t *testing.T, job guest.Job) *heard {
	t.Helper()
	return talkAs(t, "", job)
}

func talkAs(t *testing.T, prefix string, job guest.Job) *heard {
	t.Helper()
	r, w, _ := start(t, prefix)
	h := new(heard)
	last := time.Duration(-1)
	onOutput := job.Output
	job.Output = func(s guest.Stream, at time.Duration, data []byte) {
		if at < last {
			t.Errorf("time ran backwards: %v after %v", at, last)
		}
		last = at
		if s == guest.Stderr {
			h.stderr.Write(data)
		} else {
			h.stdout.Write(data)
		}
		if onOutput != nil {
			onOutput(s, at, data)
		}
	}
	h.outcome, h.err = guest.Talk(t.Context(), r, w, job)
	return h
}

// strip takes out what differs from run to run.
func strip(e guest.End) guest.End {
	e.Usage = guest.Usage{}
	return e
}

func TestWork(t *testing.T) {
	tests := []struct {
		name           string
		spec           guest.Spec
		want           guest.End
		stdout, stderr string
	}{
		{"refused: no such program", base("nowhere"), guest.End{Cause: guest.NotStarted, Exit: 127, Error: "exec nowhere: file does not exist"}, "", ""},
		{"refused: not a program", base("/etc/passwd"), guest.End{Cause: guest.NotStarted, Exit: 126, Error: "exec /etc/passwd: permission denied"}, "", ""},
		{"refused: a directory", base("/etc"), guest.End{Cause: guest.NotStarted, Exit: 126, Error: "exec /etc: permission denied"}, "", ""},
		{
			"refused: no such directory", func() guest.Spec { s := base("true"); s.Dir = "/nowhere"; return s }(),
			guest.End{Cause: guest.NotStarted, Exit: 127, Error: "stat /nowhere: no such file or directory"},
			"", "",
		},
		{"true", base("true"), guest.End{Cause: guest.Exited}, "", ""},
		{"false", base("false"), guest.End{Cause: guest.Exited, Exit: 1}, "", ""},
		{"status", base("sh", "-c", "exit 77"), guest.End{Cause: guest.Exited, Exit: 77}, "", ""},
		{"signal", base("sh", "-c", "kill -9 $$"), guest.End{Cause: guest.Exited, Exit: 137, Signal: 9}, "", ""},
		{"both streams", base("sh", "-c", "echo out; echo err >&2"), guest.End{Cause: guest.Exited}, "out\n", "err\n"},
		{"no input", base("cat"), guest.End{Cause: guest.Exited}, "", ""},
		{"streams can be opened again", base("sh", "-c", "echo out > /dev/stdout; echo err > /proc/self/fd/2"), guest.End{Cause: guest.Exited}, "out\n", "err\n"},
		{"environment", func() guest.Spec {
			s := base("sh", "-c", "echo $IMAGE-$GONE-$OURS-$PATH")
			s.Env, s.Unset = []string{"OURS=1", "PATH=/bin:/usr/bin"}, []string{"GONE"}
			return s
		}(), guest.End{Cause: guest.Exited}, "yes--1-/bin:/usr/bin\n", ""},
		{
			"session of its own", base("sh", "-c", "cut -d' ' -f5,6 /proc/$$/stat | tr ' ' '\\n' | sort -u | wc -l; echo $$ | grep -c ^1$"),
			guest.End{Cause: guest.Exited, Exit: 1},
			"1\n0\n", "",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := talk(t, guest.Job{Spec: test.spec})
			if h.err != nil {
				t.Fatalf("Talk: %v", h.err)
			}
			if d := cmp.Diff(test.want, strip(h.outcome.End)); d != "" {
				t.Errorf("end (-want +got):\n%s", d)
			}
			if h.stdout.String() != test.stdout || h.stderr.String() != test.stderr {
				t.Errorf("wrote %q and %q, want %q and %q", &h.stdout, &h.stderr, test.stdout, test.stderr)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	const ready = len("ready\n") // what work says that needs a moment for what it does before
	deadline := func(s guest.Spec) guest.Spec { s.Deadline = 300 * time.Millisecond; return s }
	output := func(s guest.Spec) guest.Spec { s.Output = 1000; return s }
	tests := []struct {
		name string
		spec guest.Spec
		want guest.End
		size int // of what was written
	}{
		{"deadline", deadline(base("sleep", "600")), guest.End{Cause: guest.TimedOut, Exit: 143, Signal: 15}, 0},
		{"deadline, deaf", deadline(base("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 600; done")), guest.End{Cause: guest.TimedOut, Exit: 137, Signal: 9}, ready},
		{"deadline, status of its own", deadline(base("sh", "-c", "exec 2>/dev/null; trap 'exit 3' TERM; echo ready; while :; do sleep 600; done")), guest.End{Cause: guest.TimedOut, Exit: 3}, ready},
		{
			"deadline, stopped", deadline(base("sh", "-c", "{ until grep -q 'State:.T' /proc/$$/status; do :; done; echo ready; } & kill -STOP $$")),
			guest.End{Cause: guest.TimedOut, Exit: 137, Signal: 9},
			ready,
		},
		{"output", output(base("yes")), guest.End{Cause: guest.OutputLimit, Exit: 137, Signal: 9}, 1000},
		{"output just fits", output(base("head", "-c", "1000", "/dev/zero")), guest.End{Cause: guest.Exited}, 1000},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := talk(t, guest.Job{Spec: test.spec})
			for test.size == ready && h.stdout.Len() == 0 && test.spec.Deadline < 20*time.Second {
				test.spec.Deadline *= 2 // the machine is busy: the deadline came first
				h = talk(t, guest.Job{Spec: test.spec})
			}
			if h.err != nil {
				t.Fatalf("Talk: %v", h.err)
			}
			if d := cmp.Diff(test.want, strip(h.outcome.End)); d != "" {
				t.Errorf("end (-want +got):\n%s", d)
			}
			if got := h.stdout.Len() + h.stderr.Len(); got != test.size {
				t.Errorf("wrote %d octets, want %d", got, test.size)
			}
		})
	}
}

// A run ends with its command, whatever it left behind and however that hides.
func TestChildren(t *testing.T) {
	tests := []struct{ name, script string }{
		{"background", "sleep 600 & sleep 600 & exit 5"},
		{"sessions of their own", "setsid sleep 600 & setsid setsid sleep 600 & exit 5"},
		{"deaf", "sh -c 'trap \"\" TERM HUP; sleep 600' & exit 5"},
		{"orphans and zombies", "for i in 1 2 3 4 5; do sh -c 'sh -c \"exit 0\" & exit 0' & done; wait; exit 5"},
		{"holding on to our streams", "sleep 600 >&2 & exit 5"},
		{"forking without end", "f() { f & f & sleep 600; }; ulimit -u 200; f & exit 5"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := talk(t, guest.Job{Spec: base("sh", "-c", test.script)})
			want := guest.End{Cause: guest.Exited, Exit: 5}
			if d := cmp.Diff(want, strip(h.outcome.End)); d != "" || h.err != nil {
				t.Errorf("end (-want +got):\n%s%v", d, h.err)
			}
			if h.outcome.End.Usage.Reaped < 1 || h.outcome.End.Usage.MaxRSS == 0 {
				t.Errorf("usage %+v", h.outcome.End.Usage)
			}
		})
	}
}

// The work shares a user with the guest; see the package comment.
func TestGuestIsOutOfReach(t *testing.T) {
	script := `
ls /proc/1/fd >/dev/null 2>&1 && echo "fd of 1 can be listed"
echo forged 2>/dev/null > /proc/1/fd/1 && echo "fd 1 of 1 can be written"
cat /proc/1/environ >/dev/null 2>&1 && echo "environ of 1 can be read"
for s in HUP INT QUIT ILL TRAP ABRT BUS FPE SEGV PIPE ALRM USR1 USR2 KILL STOP; do
  case $s in INT) ;; *) kill -$s 1;; esac
done
echo still here`
	h := talkAs(t, "setpriv --reuid 1000 --regid 1000 --clear-groups", guest.Job{Spec: base("sh", "-c", script)})
	if h.err != nil || h.stdout.String() != "still here\n" {
		t.Errorf("got %q, %q, %v", &h.stdout, &h.stderr, h.err)
	}
}

func TestInput(t *testing.T) {
	spec := base("sh", "-c", "echo ready; read x; echo got $x >&2; read y; echo and $y; cat | wc -c")
	spec.Input = true
	r, w := io.Pipe()
	var order []string
	h := talk(t, guest.Job{Spec: spec, Input: r, Output: func(s guest.Stream, _ time.Duration, data []byte) {
		order = append(order, s.String()+" "+string(data))
		switch len(order) {
		case 1:
			go io.WriteString(w, "one\n")
		case 2:
			go func() {
				_, _ = io.WriteString(w, "two\n")
				_, _ = w.Write(make([]byte, 1<<20)) // more than any credit
				w.Close()
			}()
		}
	}})
	want := []string{"stdout ready\n", "stderr got one\n", "stdout and two\n", "stdout 1048576\n"}
	if d := cmp.Diff(want, order); d != "" || h.err != nil {
		t.Errorf("order (-want +got):\n%s%v", d, h.err)
	}
}

// The launcher's end is the work's, also while the work lets its input pile up.
func TestHostGone(t *testing.T) {
	for _, input := range []bool{false, true} {
		r, w, cmd := start(t, "")
		spec := base("sleep", "600")
		spec.Input = input
		ctx, cancel := context.WithCancel(t.Context())
		out, err := guest.Talk(ctx, r, w, guest.Job{Spec: spec, Input: bytes.NewReader(make([]byte, 1<<20)), Started: func(time.Duration) { cancel() }})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Talk = %v, want canceled", err)
		}
		if out.End.Cause != guest.HostGone {
			t.Errorf("cause %q, want %q", out.End.Cause, guest.HostGone)
		}
		_, _ = io.Copy(io.Discard, r)
		_ = cmd.Wait()
		if !cmd.ProcessState.Exited() {
			t.Errorf("guest ended by %v", cmd.ProcessState)
		}
		cancel()
	}
}

func TestFiles(t *testing.T) {
	in, work, out := t.TempDir(), t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"a": "A", "d/b": "B"} {
		write(t, filepath.Join(in, name), text)
	}
	if err := os.Symlink("a", filepath.Join(in, "link")); err != nil {
		t.Fatal(err)
	}
	spec := base("sh", "-c", "cat a d/b link; echo C > d/c; chmod 4755 d/c; mkdir e; ln -s /etc/passwd e/l; mkfifo e/p; ln d/c e/c; printf x > \"$(printf 'bad\\nname')\"")
	spec.Files, spec.Export, spec.Root, spec.Dir = true, true, work, work
	spec.Bounds = guest.Bounds{Bytes: 1 << 20, Files: 100}
	var files []guest.File
	h := talk(t, guest.Job{
		Spec: spec,
		Files: func(w io.Writer) error {
			return pack(t, w, in, spec.Bounds)
		},
		Export: func(r io.Reader) (err error) {
			files, err = guest.Unpack(r, openRoot(t, out), spec.Bounds, false)
			return err
		},
	})
	if h.err != nil || h.outcome.Export != nil || h.stdout.String() != "ABA" {
		t.Fatalf("got %v, %v, %q, %q", h.err, h.outcome.Export, &h.stdout, &h.stderr)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Path)
	}
	if d := cmp.Diff([]string{"a", "d/b", "d/c", "e/c"}, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	wantSkipped := []string{`"bad\nname": has characters that do not print`, `"e/l": not a regular file`, `"e/p": not a regular file`, `"link": not a regular file`}
	if d := cmp.Diff(wantSkipped, h.outcome.Done.Skipped); d != "" {
		t.Errorf("skipped (-want +got):\n%s", d)
	}
	info, err := os.Lstat(filepath.Join(out, "d/c"))
	if err != nil || info.Mode() != 0o755 {
		t.Errorf("mode %v, %v, want 0755", info.Mode(), err)
	}
}

func TestFilesThatDoNotFit(t *testing.T) {
	in, work := t.TempDir(), t.TempDir()
	write(t, filepath.Join(in, "a"), strings.Repeat("a", 2000))
	spec := base("true")
	spec.Files, spec.Root, spec.Bounds = true, work, guest.Bounds{Bytes: 1000, Files: 10}
	h := talk(t, guest.Job{Spec: spec, Files: func(w io.Writer) error {
		return pack(t, w, in, spec.Bounds)
	}})
	if !errors.Is(h.err, guest.ErrBounds) {
		t.Errorf("launcher's bounds: Talk = %v, want ErrBounds", h.err)
	}
	h = talk(t, guest.Job{Spec: spec, Files: func(w io.Writer) error {
		return pack(t, w, in, guest.Bounds{Bytes: 1 << 20, Files: 10})
	}})
	if h.err != nil || h.outcome.End.Cause != guest.NotStarted || !strings.Contains(h.outcome.End.Error, "more files than allowed") {
		t.Errorf("guest's bounds: %v, %+v", h.err, h.outcome.End)
	}
}

func TestLook(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "real"), "content")
	write(t, filepath.Join(dir, "empty"), "")
	write(t, filepath.Join(dir, "other"), "something else")
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"link": "real", "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	spec := guest.Spec{Having: "tent"}
	for _, name := range []string{"nowhere", "dangling", "empty", "other", "pipe", ".", "link", "real"} {
		spec.Look = append(spec.Look, filepath.Join(dir, name))
	}
	var got []byte
	h := talk(t, guest.Job{Spec: spec, Export: func(r io.Reader) (err error) { got, err = io.ReadAll(r); return err }})
	real := filepath.Join(dir, "real")
	want := []guest.Found{{Path: filepath.Join(dir, "link"), Real: real}, {Path: real, Real: real}}
	if d := cmp.Diff(want, h.outcome.Done.Found); d != "" || h.err != nil || string(got) != "content" {
		t.Errorf("found (-want +got):\n%s%v %q", d, h.err, got)
	}
}

// A guest that has said all waits to be let go: an engine on a busy machine may
// not have begun to read when the container ends, and what it said is lost then.
func TestLookWaitsForGoodbye(t *testing.T) {
	r, w, _ := start(t, "")
	spec := guest.Spec{Look: []string{filepath.Join(t.TempDir(), "nowhere")}, Having: "x"}
	bye := &beforeBye{WriteCloser: w, stdout: r.(*os.File)}
	if _, err := guest.Talk(t.Context(), r, bye, guest.Job{Spec: spec, Export: func(io.Reader) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(bye.read, os.ErrDeadlineExceeded) {
		t.Errorf("before goodbye its output: %v, want it open", bye.read)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after goodbye its output: %d octets, %v, want its end", n, err)
	}
}

// beforeBye looks whether the guest is there before it is told goodbye.
type beforeBye struct {
	io.WriteCloser
	stdout *os.File
	read   error
}

func (b *beforeBye) Write(p []byte) (int, error) {
	const kindBye = 6
	if p[0] == kindBye {
		b.read = b.stdout.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if b.read == nil {
			_, b.read = b.stdout.Read(make([]byte, 1))
			_ = b.stdout.SetReadDeadline(time.Time{}) // as it was set
		}
	}
	return b.WriteCloser.Write(p)
}

// Every file that patterns match is sent, also by way of a link; what is no regular
// file or too long is not.
func TestLookAll(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.list"), "two")
	write(t, filepath.Join(dir, "a.list"), "one")
	write(t, filepath.Join(dir, "other"), "other")
	write(t, filepath.Join(dir, "long.list"), strings.Repeat("x", 1<<20+1))
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.list"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("other", filepath.Join(dir, "link.list")); err != nil {
		t.Fatal(err)
	}
	spec := guest.Spec{All: true, Look: []string{filepath.Join(dir, "*.list"), filepath.Join(dir, "nowhere"), "["}}
	got := map[string]string{}
	h := talk(t, guest.Job{Spec: spec, Export: func(r io.Reader) error {
		for tr := tar.NewReader(r); ; {
			h, err := tr.Next()
			if err != nil {
				return ignoreEOF(err)
			}
			data, err := io.ReadAll(tr)
			if err != nil {
				return err
			}
			got[strings.TrimPrefix(h.Name, dir+"/")] = string(data)
		}
	}})
	want := map[string]string{"a.list": "one", "b.list": "two", "link.list": "other"}
	if d := cmp.Diff(want, got); d != "" || h.err != nil {
		t.Errorf("files (-want +got):\n%s%v", d, h.err)
	}
	if d := cmp.Diff([]string{filepath.Join(dir, "long.list")}, h.outcome.Done.Skipped); d != "" {
		t.Errorf("skipped (-want +got):\n%s", d)
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func TestOnlyAsFirstProcess(t *testing.T) {
	var stderr bytes.Buffer
	got := guest.Main(t.Context(), guest.Config{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Now: time.Now})
	if got != 125 || !strings.Contains(stderr.String(), "first process of a sandbox") {
		t.Errorf("Main = %d, %q", got, &stderr)
	}
}

func TestUnpackRefuses(t *testing.T) {
	reg := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
	}
	tests := []struct {
		name    string
		headers []*tar.Header
	}{
		{"parent", []*tar.Header{reg("../x")}},
		{"parent inside", []*tar.Header{reg("a/../../x")}},
		{"absolute", []*tar.Header{reg("/etc/x")}},
		{"dot", []*tar.Header{reg("./x")}},
		{"empty", []*tar.Header{reg("")}},
		{"backslash", []*tar.Header{reg(`..\x`)}},
		{"escape sequence", []*tar.Header{reg("a\x1b[2Jb")}},
		{"bidi", []*tar.Header{reg("a\u202eb")}},
		{"not text", []*tar.Header{reg("a\xff")}},
		{"twice", []*tar.Header{reg("a"), reg("a")}},
		{"file below a file", []*tar.Header{reg("a"), reg("a/b")}},
		{"deep", []*tar.Header{reg(strings.Repeat("d/", 70) + "x")}},
		{"long", []*tar.Header{reg(strings.Repeat("d", 300))}},
		{"symbolic link", []*tar.Header{{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "a"}}},
		{"hard link", []*tar.Header{reg("a"), {Typeflag: tar.TypeLink, Name: "l", Linkname: "a"}}},
		{"character device", []*tar.Header{{Typeflag: tar.TypeChar, Name: "n", Devmajor: 1, Devminor: 3}}},
		{"block device", []*tar.Header{{Typeflag: tar.TypeBlock, Name: "n"}}},
		{"pipe", []*tar.Header{{Typeflag: tar.TypeFifo, Name: "n"}}},
		{"too many", []*tar.Header{reg("a"), reg("b"), reg("c"), reg("d"), reg("e")}},
		{"too large", []*tar.Header{{Typeflag: tar.TypeReg, Name: "a", Size: 1 << 40}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var buf bytes.Buffer
			w := tar.NewWriter(&buf)
			for _, h := range test.headers {
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
			}
			_ = w.Flush() // "too large" has no content
			dir := t.TempDir()
			if _, err := guest.Unpack(&buf, openRoot(t, dir), guest.Bounds{Bytes: 1000, Files: 4}, false); err == nil {
				t.Error("Unpack succeeded")
			}
		})
	}
}

// A link that is let in must not lead a later entry out.
func TestUnpackDoesNotFollow(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside},
		{Typeflag: tar.TypeReg, Name: "l/x", Mode: 0o644},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := guest.Unpack(&buf, openRoot(t, dir), guest.Bounds{Bytes: 1000, Files: 4}, true); err == nil {
		t.Error("Unpack succeeded")
	}
	if names, _ := os.ReadDir(outside); len(names) != 0 {
		t.Errorf("made %v outside", names)
	}
}

func pack(t *testing.T, w io.Writer, dir string, b guest.Bounds) error {
	t.Helper()
	tw := tar.NewWriter(w)
	if _, err := guest.Pack(t.Context(), tw, openRoot(t, dir), b, true); err != nil {
		return err
	}
	return tw.Close()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func openRoot(t *testing.T, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}
