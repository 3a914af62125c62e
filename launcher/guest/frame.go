package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// kind says what a frame carries. The zero kind is refused.
type kind uint8

// The frames that the launcher sends.
const (
	kindSpec     kind = iota + 1 // JSON of a Spec; first, once
	kindFiles                    // a piece of the tar of files that the work starts with
	kindFilesEnd                 // no more of them
	kindInput                    // standard input of the work
	kindInputEnd                 // its end
	kindBye                      // the launcher has what it wanted: exit
)

// The frames that the guest sends.
const (
	kindStarted kind = iota + 0x41 // the work has been started
	kindStdout                     // the work wrote
	kindStderr                     // the work wrote
	kindCredit                     // 4 octets: so many of standard input may be sent
	kindEnd                        // JSON of an End; the work and all its children are gone
	kindExport                     // a piece of the tar of files, or of a found file
	kindDone                       // JSON of a Done; last
)

const (
	headerSize = 1 + 8 + 4
	// chunk is how much a frame carries of a stream; a pipe holds as much.
	chunk = 64 << 10
	// maxPayload bounds any frame. Only a Spec comes near to it.
	maxPayload = 1 << 20
)

// frame is a kind, the sender's monotonic time, and octets.
type frame struct {
	kind kind
	at   time.Duration
	data []byte
}

// frameWriter writes whole frames for many goroutines.
type frameWriter struct {
	since func() time.Duration

	mu  sync.Mutex // guards w and buf, and keeps times in order
	w   io.Writer
	buf []byte
}

func newFrameWriter(w io.Writer, since func() time.Duration) *frameWriter {
	return &frameWriter{w: w, since: since}
}

func (w *frameWriter) write(k kind, data []byte) error {
	if len(data) > maxPayload {
		return fmt.Errorf("writing a frame: %d octets are more than %d", len(data), maxPayload)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf[:0], byte(k))
	w.buf = binary.BigEndian.AppendUint64(w.buf, uint64(max(w.since(), 0)))
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(len(data)))
	w.buf = append(w.buf, data...)
	_, err := w.w.Write(w.buf) // one call, so that one frame is one write(2)
	return err
}

// stream returns a writer that cuts what it is given into frames of k.
func (w *frameWriter) stream(k kind) io.Writer { return frameStream{w, k} }

type frameStream struct {
	w *frameWriter
	k kind
}

func (s frameStream) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), chunk)]
		if err := s.w.write(s.k, piece); err != nil {
			return n, err
		}
		n, p = n+len(piece), p[len(piece):]
	}
	return n, nil
}

// frameReader reads frames strictly: a bound on each, time that never runs
// backwards, and no end in the middle of one.
type frameReader struct {
	r    io.Reader
	last time.Duration
	buf  []byte
}

// next returns a frame whose data is valid until the next call. [io.EOF] is the
// end between two frames.
func (r *frameReader) next() (frame, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return frame{}, io.EOF
		}
		return frame{}, fmt.Errorf("reading a frame: %w", err)
	}
	at := time.Duration(binary.BigEndian.Uint64(head[1:9]))
	size := binary.BigEndian.Uint32(head[9:])
	if at < r.last {
		return frame{}, fmt.Errorf("reading a frame: time %d is before %d", at, r.last)
	}
	if size > maxPayload {
		return frame{}, fmt.Errorf("reading a frame: %d octets are more than %d", size, maxPayload)
	}
	r.last = at
	if int(size) > cap(r.buf) {
		r.buf = make([]byte, size)
	}
	r.buf = r.buf[:size]
	if _, err := io.ReadFull(r.r, r.buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return frame{}, fmt.Errorf("reading a frame: %w", err)
	}
	return frame{kind(head[0]), at, r.buf}, nil
}
