// Package h1 reads and writes the messages of HTTP/1.1 (RFC 9112): what
// net/http does for servers and clients that it runs itself, for a relay that
// does both on one goroutine.
//
// It trusts nothing that it reads. A message whose end, or whose fields, could
// be read in two ways is refused; whatever it accepts net/http accepts too, and
// reads alike. It never dials, never judges, and knows nothing of hosts, paths
// or policies.
package h1

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// bufferSize holds nearly every head, and a body of a few KiB with it.
const bufferSize = 4 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Reader reads messages from a connection. It holds no buffer while it waits
// for a message: many connections idle. It is for one goroutine at a time.
type Reader struct {
	src  io.Reader
	buf  []byte // nil, or what holds buf[r:w]
	r, w int
	one  [1]byte // what Wait read
	has  bool    // there is an octet in one
	err  error   // of src, to be told once buf is empty
	over int     // octets of chunked framing beyond what is usual
}

// NewReader returns a Reader of src.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Buffered returns how many octets were read from the source and are not
// consumed yet.
func (r *Reader) Buffered() int {
	n := r.w - r.r
	if r.has {
		n++
	}
	return n
}

// Unread returns what was read from the source and not consumed, and forgets it.
func (r *Reader) Unread() []byte {
	r.take()
	b := bytes.Clone(r.buf[r.r:r.w])
	r.r = r.w
	r.Release()
	return b
}

// Wait returns once there is an octet to read. It may be called while nobody
// else reads, also in the middle of an exchange, and be called again after an
// error that a deadline made.
func (r *Reader) Wait() error {
	if r.Buffered() > 0 {
		return nil
	}
	if r.err != nil {
		return r.err
	}
	r.Release()
	for range maxEmpty {
		n, err := r.src.Read(r.one[:])
		if n > 0 {
			r.has = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

const maxEmpty = 100 // reads that give nothing, in a row

// Begin reads once and reports whether a whole head is there. What it read
// stays buffered, also after an error.
func (r *Reader) Begin() (whole bool, err error) {
	r.take()
	if r.r == r.w {
		r.r, r.w = 0, 0
	}
	if r.Buffered() == 0 {
		if err := r.fill(); err != nil {
			return false, err
		}
	}
	return endOfBlock(r.buf[r.r:r.w], 0) > 0, nil
}

// Starts reports whether what comes begins with prefix, which is shorter than
// the buffer. It reads no further than it has to, and consumes nothing.
func (r *Reader) Starts(prefix string) (bool, error) {
	r.take()
	for {
		b := r.buf[r.r:r.w]
		if n := min(len(b), len(prefix)); string(b[:n]) != prefix[:n] {
			return false, nil
		} else if n == len(prefix) {
			return true, nil
		}
		if !r.slide(bufferSize) {
			return false, ErrTooLarge
		}
		if err := r.fill(); err != nil {
			return false, err
		}
	}
}

// Release gives the buffer back if nothing is in it.
func (r *Reader) Release() {
	if r.r == r.w && r.buf != nil {
		if len(r.buf) == bufferSize {
			buffers.Put((*[bufferSize]byte)(r.buf))
		}
		r.buf, r.r, r.w = nil, 0, 0
	}
}

// take makes sure that there is a buffer, with what Wait read at its start.
func (r *Reader) take() {
	if r.buf == nil {
		b, ok := buffers.Get().(*[bufferSize]byte)
		if !ok {
			b = new([bufferSize]byte)
		}
		r.buf, r.r, r.w = b[:], 0, 0
	}
	if r.has {
		r.has = false
		r.buf[0], r.w = r.one[0], 1 // Wait reads only into an empty Reader
	}
}

// fill reads more into the buffer, which has room. It returns an error only
// if nothing came.
func (r *Reader) fill() error {
	if r.err != nil {
		return r.err
	}
	for range maxEmpty {
		n, err := r.src.Read(r.buf[r.w:])
		r.w += n
		if err != nil && !isTimeout(err) { // after that one it may be tried again
			r.err = err
		}
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// slide makes room at the end of the buffer, up to most octets in all.
func (r *Reader) slide(most int) bool {
	if r.r > 0 {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
	if r.w < len(r.buf) {
		return true
	}
	if len(r.buf) >= most {
		return false
	}
	grown := make([]byte, min(2*len(r.buf), most))
	copy(grown, r.buf[:r.w])
	if len(r.buf) == bufferSize {
		buffers.Put((*[bufferSize]byte)(r.buf))
	}
	r.buf = grown
	return true
}

// SkipLineEnds passes over the few line ends that old clients send after the
// body of a POST (RFC 9112 section 2.2).
func (r *Reader) SkipLineEnds() {
	const most = 4
	r.take()
	for range most {
		if r.r == r.w || r.buf[r.r] != '\r' && r.buf[r.r] != '\n' {
			return
		}
		r.r++
	}
}

// block returns the octets up to and including the first empty line, of which
// there are at most most. They hold until the next call.
func (r *Reader) block(most int) ([]byte, error) {
	r.take()
	seen := 0 // octets from r.r on that hold no end
	for {
		if n := endOfBlock(r.buf[r.r:r.w], seen); n > 0 {
			if n > most {
				return nil, ErrTooLarge
			}
			b := r.buf[r.r : r.r+n]
			r.r += n
			return b, nil
		}
		seen = max(0, r.w-r.r-2) // the end may have begun
		if r.w-r.r >= most {
			return nil, ErrTooLarge
		}
		if r.w == len(r.buf) && !r.slide(max(most, bufferSize)) {
			return nil, ErrTooLarge
		}
		if err := r.fill(); err != nil {
			if errors.Is(err, io.EOF) && r.w > r.r {
				return nil, io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
}

// endOfBlock returns how long the lines of b are up to the first empty one,
// which is not looked for before from, or 0 if there is none yet.
func endOfBlock(b []byte, from int) int {
	if from == 0 && len(b) > 0 { // the block may be empty
		if b[0] == '\n' {
			return 1
		}
		if len(b) > 1 && b[0] == '\r' && b[1] == '\n' {
			return 2
		}
	}
	for i := from; ; {
		k := bytes.IndexByte(b[i:], '\n')
		if k < 0 {
			return 0
		}
		i += k + 1
		switch rest := b[i:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return i + 1
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return i + 2
		}
	}
}

// read is io.Reader over what is buffered and the source. Long reads go
// straight to the source.
func (r *Reader) read(p []byte) (int, error) {
	if r.Buffered() == 0 {
		if len(p) >= bufferSize && r.err == nil {
			return r.readPast(p)
		}
		r.take()
		r.r, r.w = 0, 0
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	r.take()
	n := copy(p, r.buf[r.r:r.w])
	r.r += n
	return n, nil
}

// ready reports whether the source says that reading from it will not wait.
func (r *Reader) ready() bool {
	s, ok := r.src.(interface{ Ready() bool })
	return ok && s.Ready()
}

// readPast is read without the buffer, which is empty.
func (r *Reader) readPast(p []byte) (int, error) {
	r.Release()
	n, err := r.src.Read(p)
	if err != nil && !isTimeout(err) {
		r.err = err
	}
	if n > 0 {
		err = nil
	}
	return n, err
}

// line returns the next line without its CRLF; a bare LF does not end it. It
// holds until the next call.
func (r *Reader) line(most int) ([]byte, error) {
	r.take()
	for seen := 0; ; {
		if k := bytes.IndexByte(r.buf[r.r+seen:r.w], '\n'); k >= 0 {
			b := r.buf[r.r : r.r+seen+k]
			if len(b) == 0 || bytes.IndexByte(b, '\r') != len(b)-1 {
				return nil, errLine
			}
			r.r += seen + k + 1
			return b[:len(b)-1], nil
		}
		seen = r.w - r.r
		if seen >= most || r.w == len(r.buf) && !r.slide(max(most, bufferSize)) {
			return nil, errLine
		}
		if err := r.fill(); err != nil {
			return nil, unexpected(err)
		}
	}
}

// unexpected says that the end came too early.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
