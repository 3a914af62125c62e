package dial

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"sallyport/proxy/h1"
)

// upload sends a request: by itself what is short, and with a goroutine of its
// own a body that is not, since the answer may come before its end.
type upload struct {
	w *wire
	r *request

	asking bool          // the body waits for 100 Continue
	done   chan struct{} // closed when the body was sent; nil without a goroutine

	mu   sync.Mutex // guards the two below
	err  error      // of reading the body: what ends the request
	sent bool       // all of it
}

// begin sends the head, and begins with the body.
func (u *upload) begin() error {
	p := getScratch()
	b := append(u.r.appendHead(p[:0]), u.r.small...)
	_, err := u.w.conn.Write(b)
	clear(b) // there may be a credential in it
	scratch.Put(p)
	if err != nil {
		return fmt.Errorf("sending a request: %w", err)
	}
	switch {
	case u.r.body == nil:
		u.sent = true
	case u.r.expects():
		u.asking = true
	default:
		u.goOn()
	}
	return nil
}

// none reports that there is no body that could have been read.
func (u *upload) none() bool { return u.r.body == nil && len(u.r.small) == 0 }

// ask waits for an answer to begin, but not for ever: there are servers that
// never say 100 Continue (RFC 9110 section 10.1.1).
func (u *upload) ask() error {
	_ = u.w.conn.SetReadDeadline(clock().Add(continueWait))
	err := u.w.in.Wait()
	u.w.readBy = time.Time{}
	_ = u.w.conn.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		u.goOn()
		err = nil
	}
	u.asking = false
	return err
}

// goOn begins with the body, once.
func (u *upload) goOn() {
	u.asking = false
	if u.r.body == nil || u.done != nil {
		return
	}
	u.done = make(chan struct{})
	go u.send()
}

// send sends the body.
func (u *upload) send() {
	defer close(u.done)
	defer u.r.body.Close()
	reading, writing := u.copy()
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case reading != nil:
		u.err = reading
		u.w.close() // upstream must not take it for a whole one
	case writing != nil:
		// There may be an answer that says why.
		_ = u.w.conn.SetReadDeadline(clock().Add(errorGrace))
	default:
		u.sent = true
	}
}

// copy sends the body as it comes, with its framing.
func (u *upload) copy() (reading, writing error) {
	p := getScratch()
	defer scratch.Put(p)
	buf := p[:]
	from, to := 0, len(buf)
	chunks := u.r.length < 0
	if chunks {
		from, to = h1.ChunkHead, len(buf)-len("\r\n")
	}
	left := u.r.length
	for {
		n, err := u.r.body.Read(buf[from:to])
		if n > 0 && !chunks {
			if left -= int64(n); left < 0 {
				return errors.New("the body is longer than was announced"), nil
			}
			if _, werr := u.w.conn.Write(buf[:n]); werr != nil {
				return nil, werr
			}
		}
		if n > 0 && chunks {
			at := h1.PutChunkHead(buf[:from], n)
			end := from + n + copy(buf[from+n:], "\r\n")
			if _, werr := u.w.conn.Write(buf[at:end]); werr != nil {
				return nil, werr
			}
		}
		switch {
		case err == nil:
		case !errors.Is(err, io.EOF):
			return err, nil
		case left > 0:
			return fmt.Errorf("the body is shorter than was announced: %w", io.ErrUnexpectedEOF), nil
		case chunks:
			_, werr := u.w.conn.Write(h1.AppendLastChunk(nil, u.r.Trailer))
			return nil, werr
		default:
			return nil, nil
		}
	}
}

// finished reports whether all was sent, or nearly is.
func (u *upload) finished() bool {
	if u.done != nil {
		select {
		case <-u.done:
		default:
			timer := time.NewTimer(afterAnswer)
			defer timer.Stop()
			select {
			case <-u.done:
			case <-timer.C:
				return false
			}
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.sent
}

// failed returns why the body could not be read.
func (u *upload) failed() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// wait gives the body up. The connection is closed: nothing is sent any more.
func (u *upload) wait() {
	if u.r.body != nil {
		_ = u.r.body.Close() // as a RoundTripper must
	}
}
