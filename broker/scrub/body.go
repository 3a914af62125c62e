package scrub

import (
	"io"
	"slices"
	"sync"
	"time"

	"sallyport/broker/needle"
)

const (
	bodyBuffer = 32 << 10
	minRead    = 4 << 10
	// patience is how long a few octets that may begin a secret are held back
	// when nothing follows them: a server that waits for an answer to a message
	// that happens to end in such octets would otherwise wait for ever.
	patience = 100 * time.Millisecond
	// maxGuess is how many octets of a secret, beyond those that its stand-in
	// shares, may go that way. That a message ends in more of them by chance is
	// as likely as guessing them.
	maxGuess = 3
)

// Body returns a body that reads as r does, without the secrets. Closing it
// closes r, also under a Read that waits.
//
// What comes out does not depend on how r is cut, unless r stops for longer
// than a tenth of a second inside the first octets of a secret.
func (s *Scrubber) Body(r io.ReadCloser) io.ReadCloser {
	if s.idle() {
		return r
	}
	return &body{set: s.set, src: r}
}

// body reads ahead into buf, where the reader's own room does not do. It is in three
// parts:
//
//	buf[:low]      handed out
//	buf[low:clean] clean, to be handed out
//	buf[clean:]    held back: it may begin a secret
//
// The search goes on at mark, which is where that secret would begin. It is
// below clean where the secret's first octets were found to be harmless.
type body struct {
	set *needle.Set
	src io.ReadCloser
	// strip, if there is one, takes out of what was read, in place, what is not
	// searched, and says how long the rest is.
	strip func(p []byte) (n int, err error)

	buf              []byte
	low, clean, mark int
	// guess is where the octets begin that can only be the secret's, or chance:
	// no more than maxGuess of them are let go, however slowly they come.
	guess int
	err   error // of src; told when everything is handed out

	pending chan read // a read under way in another goroutine, or nil
	spare   []byte    // what it reads into
}

type read struct {
	n   int
	err error
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for b.low == b.clean {
		if b.err != nil {
			b.release()
			return 0, b.err
		}
		b.compact()
		if b.fits(len(p)) {
			if n := b.within(p); n > 0 {
				return n, nil
			}
			continue
		}
		if !b.fill() {
			b.clean = len(b.buf) // patience has ended
			continue
		}
		b.scrub()
	}
	n := copy(p, b.buf[b.low:b.clean])
	b.low += n
	return n, nil
}

// fits reports whether n octets are room enough to read and search there: beside what is
// held back, and where nothing that was handed out is needed.
func (b *body) fits(n int) bool {
	held := len(b.buf) - b.clean
	return b.pending == nil && b.mark == b.clean && (held == 0 || n >= held+minRead && b.waits())
}

// within reads into p behind what is held back, and takes the secrets out there: nothing
// is copied but what is held back then. It returns how many octets are clean.
func (b *body) within(p []byte) int {
	own := b.buf
	held := copy(p, own[b.clean:])
	n, err := b.src.Read(p[held:])
	b.buf, b.err = p[:held+n], err
	b.low, b.clean, b.mark, b.guess = 0, 0, 0, 0
	b.scrub()
	clean, keep := b.clean, min(b.clean, b.mark)
	rest := b.buf[keep:]
	if own == nil && len(rest) > 0 {
		own = newBuffer(bodyBuffer)
	}
	b.buf = append(own[:0], rest...)
	clear(p[clean : held+n]) // whoever has this room next is to find no beginning of a secret
	b.low, b.clean, b.mark, b.guess = clean-keep, clean-keep, b.mark-keep, b.guess-keep
	return clean
}

// spent holds buffers of bodies that were read to their end.
var spent sync.Pool

// newBuffer returns an empty buffer with room for n octets.
func newBuffer(n int) []byte {
	if p, ok := spent.Get().(*[]byte); ok && cap(*p) >= n {
		return (*p)[:0]
	}
	return make([]byte, 0, n)
}

// release gives the buffer back: all of it was handed out, and nothing more will
// be read. A body that is closed before is left to the garbage collector, since
// somebody may be reading it.
func (b *body) release() {
	if b.buf != nil {
		buf := b.buf
		clear(buf)
		spent.Put(&buf)
		b.buf = nil
		b.low, b.clean, b.mark, b.guess = 0, 0, 0, 0
	}
}

// Ready reports whether Read has something to say without waiting, as far as the
// source tells.
func (b *body) Ready() bool { return b.low < b.clean || b.err != nil || ready(b.src) }

func ready(r io.Reader) bool {
	s, ok := r.(interface{ Ready() bool })
	return ok && s.Ready()
}

// Close implements [io.Closer].
func (b *body) Close() error { return b.src.Close() }

// compact drops what was handed out and is not needed for the search.
func (b *body) compact() {
	drop := min(b.low, b.mark)
	n := copy(b.buf, b.buf[drop:])
	b.buf = b.buf[:n]
	b.low, b.clean, b.mark, b.guess = b.low-drop, b.clean-drop, b.mark-drop, b.guess-drop
}

// waits reports whether a read may take its time: nothing is held back, too much to be
// let go, or the read will not wait.
func (b *body) waits() bool {
	return len(b.buf) == b.clean || len(b.buf)-b.guess > maxGuess || now(b.src)
}

func now(r io.Reader) bool {
	s, ok := r.(interface{ Now() bool })
	return ok && s.Now()
}

// fill reads once. It returns false if nothing came in time and what is held
// back is little enough to be let go.
func (b *body) fill() bool {
	wait := b.pending != nil && (len(b.buf) == b.clean || len(b.buf)-b.guess > maxGuess) || b.pending == nil && b.waits()
	if b.buf == nil {
		b.buf = newBuffer(bodyBuffer)
	}
	if b.pending == nil && wait {
		b.buf = slices.Grow(b.buf, minRead) // more than bodyBuffer only beside what is held back
		n, err := b.src.Read(b.buf[len(b.buf):cap(b.buf)])
		b.grown(n, err)
		return true
	}
	if b.pending == nil {
		b.readAside()
	}
	if wait {
		b.take(<-b.pending)
		return true
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case r := <-b.pending:
		b.take(r)
		return true
	case <-timer.C:
		return false
	}
}

// readAside starts a read in a goroutine of its own. It ends with the read,
// which closing the source ends.
func (b *body) readAside() {
	if b.spare == nil {
		b.spare = make([]byte, 4<<10)
	}
	done, src, spare := make(chan read, 1), b.src, b.spare
	b.pending = done
	go func() {
		n, err := src.Read(spare)
		done <- read{n, err}
	}()
}

func (b *body) take(r read) {
	b.pending = nil
	b.buf = slices.Grow(b.buf, r.n)
	b.grown(copy(b.buf[len(b.buf):cap(b.buf)], b.spare[:r.n]), r.err)
}

// grown takes n octets that were read behind buf into it.
func (b *body) grown(n int, err error) {
	start := len(b.buf)
	b.buf, b.err = b.buf[:start+n], err
	if b.strip == nil {
		return
	}
	k, bad := b.strip(b.buf[start:])
	b.buf = b.buf[:start+k]
	if bad != nil {
		b.err = bad
	}
}

// scrub replaces what is known to be a secret and moves clean to where one may
// begin that has not ended yet.
func (b *body) scrub() {
	for {
		h, ok := b.find()
		if !ok {
			b.clean, b.mark, b.guess = len(b.buf), len(b.buf), len(b.buf)
			return
		}
		if !h.Whole {
			b.mark, b.guess = h.At, h.At+b.set.Settled(b.buf, h.At)
			b.clean = max(b.clean, b.guess)
			return
		}
		end := h.At + h.Len
		h.Cover(b.buf[h.At:end], max(0, b.clean-h.At)) // before clean it is gone already
		b.clean, b.mark, b.guess = end, end, end
	}
}

// find is the search in a text that goes on, or that has ended.
func (b *body) find() (needle.Hit, bool) {
	if b.err != nil {
		return needle.Next(b.set, b.buf, b.mark)
	}
	return b.set.NextPart(b.buf, b.mark)
}
