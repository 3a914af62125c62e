package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// work is a started child and the pipes to it.
type work struct {
	pid            int
	stdout, stderr *os.File
	stdin          *os.File // nil without input
	input          *inputQueue
}

// environment is the image's, without what is unset, under the spec's.
func environment(image, unset, spec []string) []string {
	out := make([]string, 0, len(image)+len(spec))
	at := make(map[string]int, cap(out))
	for _, name := range unset {
		at[name] = -1
	}
	put := func(kv string, over bool) {
		name, _, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			return
		}
		i, seen := at[name]
		switch {
		case seen && i >= 0:
			out[i] = kv
		case !seen || over:
			at[name] = len(out)
			out = append(out, kv)
		}
	}
	for _, kv := range image {
		put(kv, false)
	}
	for _, kv := range spec {
		put(kv, true)
	}
	return out
}

func get(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// lookPath finds a program as execvp(3) would, in the work's PATH and not in ours.
func lookPath(name, dir string, env []string) (string, error) {
	if name == "" {
		return "", &fs.PathError{Op: "exec", Path: name, Err: fs.ErrNotExist}
	}
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return name, executable(name)
	}
	failed := fs.ErrNotExist
	for _, d := range filepath.SplitList(get(env, "PATH")) {
		if !filepath.IsAbs(d) {
			continue // what stands in the current directory is not a command
		}
		path := filepath.Join(d, name)
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			failed = fs.ErrPermission
		}
	}
	return "", &fs.PathError{Op: "exec", Path: name, Err: failed}
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return &fs.PathError{Op: "exec", Path: path, Err: fs.ErrPermission}
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return &fs.PathError{Op: "exec", Path: path, Err: err}
	}
	return nil
}

// statusOf is what shells say of a command that could not be started.
func statusOf(err error) int {
	if errors.Is(err, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// start makes the pipes and the child.
func (g *guest) start() (w *work, err error) {
	env := environment(os.Environ(), g.spec.Unset, g.spec.Env)
	if g.spec.Home != "" {
		// The work says more plainly what it misses than we could.
		_ = os.MkdirAll(g.spec.Home, 0o700)
	}
	dir := g.spec.Dir
	if dir == "" {
		dir = "/"
	}
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, &fs.PathError{Op: "chdir", Path: dir, Err: unix.ENOTDIR}
	}
	path, err := lookPath(g.spec.Argv[0], dir, env)
	if err != nil {
		return nil, err
	}
	p, err := makePipes(g.spec.Input)
	if err != nil {
		return nil, fmt.Errorf("making pipes: %w", err)
	}
	defer p.closeTheirs()
	pid, err := g.fork(path, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: p.descriptors(), Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		p.closeOurs()
		return nil, &fs.PathError{Op: "exec", Path: path, Err: err}
	}
	w = &work{pid: pid, stdout: p.ours[1], stderr: p.ours[2], stdin: p.ours[0]}
	if w.stdin != nil {
		w.input = newInputQueue()
	}
	return w, nil
}

// fork starts the child as the first to go when memory runs out: the score is
// inherited at fork and ours is put back after it (proc(5), oom_score_adj).
func (g *guest) fork(path string, attr *syscall.ProcAttr) (pid int, err error) {
	if g.oom != nil {
		_, _ = g.oom.WriteAt([]byte("1000"), 0)
		defer g.oom.Close()
		defer func() { _, _ = g.oom.WriteAt([]byte("0"), 0) }()
	}
	return syscall.ForkExec(path, g.spec.Argv, attr)
}

// pipes holds both ends of the child's three standard streams.
type pipes struct {
	ours, theirs [3]*os.File
}

func makePipes(input bool) (p *pipes, err error) {
	p = new(pipes)
	defer func() {
		if err != nil {
			p.closeOurs()
			p.closeTheirs()
		}
	}()
	if input {
		p.theirs[0], p.ours[0], err = os.Pipe()
	} else {
		p.theirs[0], err = os.Open(os.DevNull)
	}
	if err != nil {
		return p, err
	}
	if p.ours[1], p.theirs[1], err = os.Pipe(); err != nil {
		return p, err
	}
	p.ours[2], p.theirs[2], err = os.Pipe()
	return p, err
}

func (p *pipes) descriptors() []uintptr {
	return []uintptr{p.theirs[0].Fd(), p.theirs[1].Fd(), p.theirs[2].Fd()}
}

func (p *pipes) closeOurs()   { closeAll(p.ours[:]) }
func (p *pipes) closeTheirs() { closeAll(p.theirs[:]) }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close() // a pipe: nothing is lost
		}
	}
}

// wait pumps and reaps until no process but this one is left.
func (w *work) wait(g *guest) End {
	var pumps sync.WaitGroup
	pumps.Go(func() { g.pump(w.stdout, kindStdout) })
	pumps.Go(func() { g.pump(w.stderr, kindStderr) })
	if w.input != nil {
		pumps.Go(func() { g.feed(w) })
	}
	end := w.reap(g)
	if w.input != nil {
		w.input.close()
	}
	pumps.Wait() // every writer is gone, so they end
	end.Usage.fromChildren()
	g.mu.Lock()
	defer g.mu.Unlock()
	end.Cause = g.cause
	return end
}

// reap waits for every child, adopted ones too, until there is none. When the
// first process of the work is gone the others are killed: a run ends with its
// command.
func (w *work) reap(g *guest) End {
	var end End
	gone := false
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return end // ECHILD: there is none left
		}
		end.Usage.Reaped++
		if gone {
			killAll(unix.SIGKILL) // one may have been forked past the first time
		}
		if pid == w.pid {
			gone = true
			g.stop(Exited)
			end.Exit = status.ExitStatus()
			if status.Signaled() {
				end.Signal = int(status.Signal())
				end.Exit = 128 + end.Signal
			}
		}
	}
}

func (u *Usage) fromChildren() {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &r); err != nil {
		return // zero is what is known
	}
	u.MaxRSS = r.Maxrss << 10
	u.User = time.Duration(r.Utime.Nano())
	u.System = time.Duration(r.Stime.Nano())
}

// pump sends what the work writes, up to the limit.
func (g *guest) pump(r *os.File, k kind) {
	defer r.Close()
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			g.output(k, buf[:n])
		}
		if err != nil {
			return
		}
	}
}

func (g *guest) output(k kind, data []byte) {
	g.mu.Lock()
	left := g.spec.Output - g.written
	g.written += int64(len(data))
	g.mu.Unlock()
	if int64(len(data)) > left {
		g.stop(OutputLimit)
		data = data[:max(left, 0)]
	}
	if len(data) == 0 {
		return
	}
	if err := g.out.write(k, data); err != nil {
		g.stop(HostGone)
	}
}

// credit is how much of standard input may be on its way. The launcher starts
// with it and gets more as the work reads.
const credit = 64 << 10

// inputQueue holds standard input that the work has not read yet.
type inputQueue struct {
	mu     sync.Mutex // guards the rest
	ready  sync.Cond
	data   []byte
	ended  bool // no more will come
	closed bool // nobody will read
}

func newInputQueue() *inputQueue {
	q := new(inputQueue)
	q.ready.L = &q.mu
	return q
}

func (q *inputQueue) put(data []byte) error {
	if q == nil {
		return errors.New("there is no input")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || len(q.data)+len(data) > credit {
		return errors.New("more input than there is credit for")
	}
	q.data = append(q.data, data...)
	q.ready.Signal()
	return nil
}

func (q *inputQueue) end() error {
	if q == nil {
		return errors.New("there is no input")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.ready.Signal()
	return nil
}

func (q *inputQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.ready.Signal()
}

// take waits for input. io.EOF is its end.
func (q *inputQueue) take() ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.data) == 0 && !q.ended && !q.closed {
		q.ready.Wait()
	}
	if len(q.data) == 0 || q.closed {
		return nil, io.EOF
	}
	data := q.data
	q.data = nil
	return data, nil
}

// feed gives the work its standard input and the launcher its credit back.
func (g *guest) feed(w *work) {
	defer w.stdin.Close()
	for {
		data, err := w.input.take()
		if err != nil {
			return
		}
		// EPIPE: the work does not want it. It is taken all the same, so that
		// the launcher can end its stream.
		_, _ = w.stdin.Write(data)
		if err := g.out.write(kindCredit, beUint32(len(data))); err != nil {
			return // told by output, or by the line
		}
	}
}
