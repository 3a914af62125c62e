package guest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Stream is one of the work's two outputs.
type Stream uint8

// The streams, numbered as descriptors are.
const (
	Stdout Stream = iota + 1
	Stderr
)

// String returns the stream's usual name.
func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	}
	return "none"
}

// Job is what a guest is to do, and who is told. The funcs are called one at a
// time; any may be nil.
type Job struct {
	Spec Spec
	// Files writes the tar that Spec.Files announces.
	Files func(io.Writer) error
	// Input is the work's standard input, read once the work has started. Talk
	// does not wait for a Read that is still going on when the work is over.
	Input io.Reader
	// Started is told that the work runs, and the time on the guest's clock.
	Started func(at time.Duration)
	// Output takes what the work wrote, at a time on the guest's clock. It must
	// not keep data.
	Output func(s Stream, at time.Duration, data []byte)
	// Ended is told that the work is gone. The sandbox is still there.
	Ended func(End)
	// Export reads the tar of Spec.Export, or the file of Spec.Look.
	Export func(io.Reader) error
}

// Outcome is what a guest had to say.
type Outcome struct {
	End    End
	Done   Done
	Export error // what Job.Export returned
}

// ErrProtocol says that what came over the line is not what a guest sends.
var ErrProtocol = errors.New("the sandbox does not speak as a guest does")

// ErrHungUp says that the line ended before the guest was done.
var ErrHungUp = errors.New("the sandbox ended without a result")

// Talk has a guest do a job: w is its standard input, r its standard output. It
// returns when the guest is done or the line is broken, with what it learnt
// until then. When ctx is done it closes w, which has the guest kill the work.
func Talk(ctx context.Context, r io.Reader, w io.WriteCloser, job Job) (Outcome, error) {
	if err := job.Spec.check(); err != nil {
		return Outcome{}, fmt.Errorf("talking to the guest: %w", err)
	}
	if job.Spec.Files && job.Files == nil {
		return Outcome{}, errors.New("talking to the guest: files are announced and nobody writes them")
	}
	t := &talk{
		job:     job,
		in:      &frameReader{r: r},
		out:     newFrameWriter(w, func() time.Duration { return 0 }),
		w:       w,
		set:     make(chan struct{}),
		started: make(chan struct{}),
		over:    make(chan struct{}),
		credit:  credit,
		more:    make(chan struct{}, 1),
	}
	defer context.AfterFunc(ctx, t.hangUp)()
	go t.say()
	err := t.hear()
	close(t.over)
	if err == nil {
		// A guest that is gone already needs no goodbye.
		_ = t.out.write(kindBye, nil)
	}
	t.hangUp()
	<-t.set
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case t.setErr != nil:
		err = errors.Join(t.setErr, err)
	}
	return t.outcome, err
}

type talk struct {
	job     Job
	in      *frameReader
	out     *frameWriter
	outcome Outcome
	output  int64

	w    io.Closer
	once sync.Once // closes w

	set     chan struct{} // closed when the guest has, or will never have, all it needs to start
	setErr  error         // read after set
	started chan struct{} // closed when input is wanted
	over    chan struct{} // closed when nothing more is heard
	more    chan struct{} // has one if credit may have been given

	mu     sync.Mutex // guards credit
	credit int        // how much input may be sent
}

func (t *talk) hangUp() {
	t.once.Do(func() { _ = t.w.Close() }) // the other end sees it, or is gone
}

// say sends everything that the guest needs. A line that breaks here is noticed
// by hear.
func (t *talk) say() {
	t.setErr = t.setUp()
	failed := t.setErr != nil
	close(t.set)
	if failed {
		t.hangUp()
		return
	}
	if t.job.Input == nil || !t.job.Spec.Input {
		return
	}
	select {
	case <-t.started:
		t.input()
	case <-t.over:
	}
}

// input sends standard input, as much at a time as there is credit for.
func (t *talk) input() {
	buf := make([]byte, chunk/2)
	for {
		n := min(t.give(0), len(buf))
		if n == 0 {
			select {
			case <-t.more:
				continue
			case <-t.over:
				return
			}
		}
		got, err := t.job.Input.Read(buf[:n])
		t.give(-got)
		if got > 0 && t.out.write(kindInput, buf[:got]) != nil {
			return
		}
		if err != nil {
			_ = t.out.write(kindInputEnd, nil) // see say
			return
		}
	}
}

// give adds credit, tells input, and returns what there is.
func (t *talk) give(n int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.credit += n
	if n > 0 {
		select {
		case t.more <- struct{}{}:
		default:
		}
	}
	return t.credit
}

func (t *talk) setUp() error {
	data, err := json.Marshal(t.job.Spec)
	if err != nil {
		return err
	}
	if err := t.out.write(kindSpec, data); err != nil {
		return err
	}
	if !t.job.Spec.Files {
		return nil
	}
	if err := t.job.Files(t.out.stream(kindFiles)); err != nil {
		return err
	}
	return t.out.write(kindFilesEnd, nil)
}

// hear reads a whole conversation.
func (t *talk) hear() error {
	if len(t.job.Spec.Look) == 0 {
		if err := t.hearWork(); err != nil {
			return err
		}
		if t.job.Ended != nil {
			t.job.Ended(t.outcome.End)
		}
	}
	return t.hearFiles()
}

func (t *talk) next() (frame, error) {
	f, err := t.in.next()
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return f, ErrHungUp
	case err != nil:
		return f, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return f, nil
}

func unexpected(f frame) error {
	return fmt.Errorf("%w: frame %d is not expected", ErrProtocol, f.kind)
}

// hearWork reads up to the end of the work.
func (t *talk) hearWork() error {
	running := false
	for {
		f, err := t.next()
		if err != nil {
			return err
		}
		switch {
		case f.kind == kindStarted && !running && len(f.data) == 0:
			running = true
			close(t.started)
			if t.job.Started != nil {
				t.job.Started(f.at)
			}
		case f.kind == kindStdout && running:
			err = t.hearOutput(Stdout, f)
		case f.kind == kindStderr && running:
			err = t.hearOutput(Stderr, f)
		case f.kind == kindCredit && running:
			err = t.hearCredit(f)
		case f.kind == kindEnd:
			return t.hearEnd(f, running)
		default:
			err = unexpected(f)
		}
		if err != nil {
			return err
		}
	}
}

func (t *talk) hearOutput(s Stream, f frame) error {
	// The guest holds the limit; that it does is not taken on trust.
	if t.output += int64(len(f.data)); t.output > t.job.Spec.Output {
		return fmt.Errorf("%w: more output than it was to let through", ErrProtocol)
	}
	if t.job.Output != nil {
		t.job.Output(s, f.at, f.data)
	}
	return nil
}

func (t *talk) hearCredit(f frame) error {
	if len(f.data) != 4 {
		return unexpected(f)
	}
	n := binary.BigEndian.Uint32(f.data)
	if n == 0 || n > credit || !t.job.Spec.Input {
		return unexpected(f)
	}
	if t.give(int(n)) > credit {
		return unexpected(f) // more than it was sent
	}
	return nil
}

func (t *talk) hearEnd(f frame, running bool) error {
	var end End
	if err := strict(f.data, &end); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	switch end.Cause {
	case Exited, TimedOut, OutputLimit, Terminated, HostGone:
		if !running {
			return fmt.Errorf("%w: an end without a start", ErrProtocol)
		}
	case NotStarted:
		if running {
			return fmt.Errorf("%w: started and not started", ErrProtocol)
		}
	default:
		return fmt.Errorf("%w: unknown cause", ErrProtocol)
	}
	if end.Exit < 0 || end.Exit > 255 || end.Signal < 0 || end.Signal > 64 || len(end.Error) > 4096 {
		return fmt.Errorf("%w: impossible end", ErrProtocol)
	}
	t.outcome.End = end
	return nil
}

// hearFiles reads what the guest sends back.
func (t *talk) hearFiles() error {
	x := t.receive()
	bound := t.job.Spec.exportBound()
	for {
		f, err := t.next()
		switch {
		case err != nil:
		case f.kind == kindExport && int64(len(f.data)) <= bound:
			bound -= int64(len(f.data))
			x.write(f.data)
			continue
		case f.kind == kindDone:
			err = strict(f.data, &t.outcome.Done)
			if err != nil || len(f.data) > chunk {
				err = fmt.Errorf("%w: done, but not well: %w", ErrProtocol, err)
			}
		default:
			err = unexpected(f)
		}
		t.outcome.Export = x.close(err)
		return err
	}
}

// exportBound is what a tar within the bounds cannot exceed: content, and for
// each entry two headers, a long name and padding.
func (s *Spec) exportBound() int64 {
	switch {
	case len(s.Look) > 0:
		return maxLook
	case s.Export:
		return s.Bounds.Bytes + int64(s.Bounds.Files)*(4*512+2*maxPath) + chunk
	}
	return 0
}

// receiver runs Job.Export beside the reading.
type receiver struct {
	w      *io.PipeWriter
	failed bool
	done   chan error
}

func (t *talk) receive() *receiver {
	r, w := io.Pipe()
	x := &receiver{w: w, done: make(chan error, 1)}
	go func() {
		var err error
		if t.job.Export != nil {
			err = t.job.Export(r)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		r.CloseWithError(errors.New("not wanted any more"))
		x.done <- err
	}()
	return x
}

// write passes data on; once the reader has had enough the rest is dropped.
func (x *receiver) write(data []byte) {
	if !x.failed {
		_, err := x.w.Write(data)
		x.failed = err != nil
	}
}

// close ends the stream, as broken if err is not nil, and waits for the reader.
func (x *receiver) close(err error) error {
	x.w.CloseWithError(err) // nil is io.EOF
	return <-x.done
}
