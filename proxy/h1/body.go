package h1

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// Body is the body of a message. It is for one goroutine at a time. It is at
// its end once Read has said [io.EOF], which it may do together with the last
// octets; Close does not read the rest.
type Body struct {
	r       *Reader
	left    int64        // of the chunk or the body; -1: until the source ends
	chunks  bool         // framed in chunks
	within  bool         // in a chunk, whose CRLF is still to come
	trailer *http.Header // where that of a body in chunks goes

	// Before is called once, before the first octet is read from the source:
	// to say 100 Continue.
	Before func() error

	err   error // told again; io.EOF after the whole body
	whole atomic.Bool
}

// maxTrailer bounds a trailer: 16 KiB.
const maxTrailer = 16 << 10

// Whole reports whether the body was read to its end. Any goroutine may ask.
func (b *Body) Whole() bool { return b.whole.Load() }

// Ready reports whether Read has something to say without waiting.
func (b *Body) Ready() bool { return b.err != nil || b.r.Buffered() > 0 }

// Now reports whether Read has something to say without waiting, and is certain of it:
// the source is asked, if it has a method Ready that can tell.
func (b *Body) Now() bool {
	switch {
	case b.err != nil:
		return true
	case b.Before != nil, b.left == 0: // who knows when the next chunk comes
		return false
	default:
		return b.r.Buffered() > 0 || b.r.ready()
	}
}

// Close implements [io.Closer]. What was not read stays unread.
func (b *Body) Close() error {
	if b.err == nil {
		b.err = http.ErrBodyReadAfterClose
	}
	return nil
}

// Read implements [io.Reader].
func (b *Body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.Before != nil {
		before := b.Before
		b.Before = nil
		if err := before(); err != nil {
			b.err = err
			return 0, err
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	if b.chunks {
		return b.readChunks(p)
	}
	if b.left >= 0 {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.r.read(p)
	if b.left >= 0 {
		if b.left -= int64(n); b.left == 0 {
			return n, b.keep(io.EOF)
		}
		err = unexpected(err)
	}
	return n, b.keep(err)
}

// keep remembers an error, but not one that a deadline made.
func (b *Body) keep(err error) error {
	whole := err == io.EOF //nolint:errorlint // never wrapped, by this package nor by a connection
	if whole || err != nil && !isTimeout(err) {
		b.err = err
		b.whole.Store(whole)
	}
	return err
}

// readChunks reads as much as is there of as many chunks as fit into p. It
// waits only while it has nothing to give.
func (b *Body) readChunks(p []byte) (n int, err error) {
	for n < len(p) {
		if b.left == 0 {
			if n > 0 && !b.r.hasLine(b.within) {
				return n, nil
			}
			if err := b.nextChunk(); err != nil {
				return n, b.keep(err)
			}
		}
		if n > 0 && b.r.Buffered() == 0 {
			return n, nil
		}
		k, err := b.r.read(p[n : n+int(min(int64(len(p)-n), b.left))])
		n += k
		b.left -= int64(k)
		if err != nil {
			return n, b.keep(unexpected(err))
		}
	}
	// If the end has come too, say so now: it saves the caller a turn.
	if b.left == 0 && b.r.hasEnd() {
		if err := b.nextChunk(); err != nil {
			return n, b.keep(err)
		}
	}
	return n, nil
}

// nextChunk reads up to the first octet of the next chunk. After the last one,
// which is empty, it reads the trailer and says io.EOF.
func (b *Body) nextChunk() error {
	if b.within {
		if line, err := b.r.line(2); err != nil || len(line) > 0 {
			return errors.Join(errLine, err)
		}
		b.within = false
	}
	const longest = 4 << 10
	line, err := b.r.line(longest)
	if err != nil {
		return err
	}
	size, err := chunkSize(line)
	if err != nil {
		return err
	}
	// Many octets of framing for few of data make work for nothing.
	b.r.over = max(0, b.r.over+len(line)+2-16-int(min(2*size, 1<<20)))
	if b.r.over > 16<<10 {
		return bad("a chunked body with hardly any data")
	}
	if size > 0 {
		b.left, b.within = size, true
		return nil
	}
	return b.readTrailer()
}

// chunkSize reads the line before a chunk (RFC 9112 section 7.1). Extensions
// are dropped.
func chunkSize(line []byte) (int64, error) {
	var n int64
	i := 0
	for ; i < len(line); i++ {
		d, ok := hexDigit(line[i])
		if !ok {
			break
		}
		if i >= 15 { // fits an int64 for sure
			return 0, errLine
		}
		n = n<<4 | int64(d)
	}
	if i == 0 {
		return 0, errLine
	}
	for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
		i++
	}
	if i < len(line) && line[i] != ';' {
		return 0, errLine
	}
	return n, nil
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	default:
		return 0, false
	}
}

// readTrailer reads the fields after the last chunk. All of them are kept,
// whether or not they were announced, but none that would frame the message.
func (b *Body) readTrailer() error {
	block, err := b.r.block(maxTrailer)
	if err != nil {
		return unexpected(err)
	}
	text := string(block)
	if strings.Count(text, "\n") != strings.Count(text, "\r\n") {
		return errLine // as in the chunks, a bare LF ends no line here
	}
	h, err := fields(text)
	if err != nil {
		return err
	}
	for name, values := range h {
		if isFraming(name) {
			return bad("bad trailer name")
		}
		if *b.trailer == nil {
			*b.trailer = http.Header{}
		}
		(*b.trailer)[name] = values
	}
	return io.EOF
}

// hasLine reports whether a chunk's line is there, after the CRLF of the one
// before it.
func (r *Reader) hasLine(within bool) bool {
	b := r.buf[r.r:r.w]
	if within {
		if len(b) < 2 {
			return false
		}
		b = b[2:]
	}
	return slices.Contains(b, '\n')
}

// hasEnd reports whether the last chunk is there, with no trailer.
func (r *Reader) hasEnd() bool {
	const end = "\r\n0\r\n\r\n"
	return r.w-r.r >= len(end) && string(r.buf[r.r:r.r+len(end)]) == end
}
