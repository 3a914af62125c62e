package broker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"sallyport/broker/scrub"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// (ADR-0039) A body that is compressed is sent as it came, and what it says is searched
// on the side: each piece before it is handed on. A decoder wants to read, and a body is
// read by who sends it: so the decoder runs as a coroutine, which goes on when there is
// another piece, and never holds anything up or back.

const (
	// maxPacked bounds how often a body is compressed over.
	maxPacked = 3
	// growthFree and growth bound what a body may become: a bomb costs no more time
	// than its sender's octets are worth.
	growthFree, growth = 16 << 20, 256
)

var (
	errUnknownCoding = errors.New("the body, or the messages within it, are in a coding that cannot be looked into: send them as they are, or in gzip, deflate, br or zstd")
	errDamaged       = errors.New("the body is not in the coding that it says it is in: send it as it is")
	errGrows         = fmt.Errorf("the body becomes more than %d times as large when it is decompressed: send it as it is", growth)
	errClosed        = errors.New("the body was closed")
)

// packed returns the opener of what the codings of a request hide, nil for none.
func packed(h http.Header) (open func(io.Reader) (io.ReadCloser, error), err error) {
	var compressed []string
	framed := false
	for _, c := range listed(h["Content-Encoding"]) {
		switch {
		case strings.EqualFold(c, "identity"):
		case strings.EqualFold(c, "aws-chunked"): // always around all others, wherever it is listed
			framed = true
		default:
			compressed = append(compressed, c)
		}
	}
	codings, within := strings.Join(compressed, ","), scrub.Within(h)
	switch {
	case len(compressed) > maxPacked:
		return nil, errUnknownCoding
	case len(compressed) == 0 && !framed && within == "":
		return nil, nil
	}
	open = func(in io.Reader) (io.ReadCloser, error) {
		body := io.NopCloser(in)
		if framed {
			body = unframed(body, h)
		}
		body, err := scrub.Decode(codings, body)
		if err != nil || within == "" {
			return body, err
		}
		return scrub.Messages(within, body) // of gRPC, or of a stream of Connect
	}
	if _, err := open(http.NoBody); err != nil { // it reads nothing yet
		return nil, errUnknownCoding
	}
	return open, nil
}

// unframed reads the frames of AWS's chunks, where they are said to be around a body.
func unframed(body io.ReadCloser, h http.Header) io.ReadCloser {
	left, err := strconv.ParseInt(h.Get("X-Amz-Decoded-Content-Length"), 10, 64)
	if err != nil || left < 0 {
		return body
	}
	return &awsChunks{in: bufio.NewReaderSize(body, 4<<10), Closer: body, left: left, trailers: listed(h["X-Amz-Trailer"])}
}

// unpacking is a body that is searched decompressed, while it is read as it is.
type unpacking struct {
	io.ReadCloser
	look guarded // over what it says
	// strict has what cannot be looked into refused, and not let go.
	strict func(error) error
	open   func(io.Reader) (io.ReadCloser, error)

	mu   sync.Mutex // guards all below: a body may be closed while it is read
	fed  feed
	next func() (error, bool) // nil before the first piece
	stop func()
	done bool // there is nothing more to find out
	err  error
}

// feed is what a decoder reads: what there is, and then more.
type feed struct {
	rest  []byte
	end   error
	total int64
	more  func() bool // waits; false: the body was closed
}

// Read implements [io.Reader].
func (f *feed) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.end != nil {
			return 0, f.end
		}
		if !f.more() {
			return 0, errClosed
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// Read implements [io.Reader].
func (u *unpacking) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.search(p[:n], err); u.err != nil {
		return 0, u.err
	}
	return n, err
}

// search has the decoder go on with a piece of the body.
func (u *unpacking) search(b []byte, end error) {
	if u.err != nil || u.done {
		return
	}
	u.fed.rest, u.fed.end = b, end
	u.fed.total += int64(len(b))
	if u.next == nil {
		u.next, u.stop = iter.Pull(u.findings)
	}
	err, more := u.next()
	u.err, u.done = err, !more
}

// findings gives nil for each piece that is done with, and at last why the body is
// refused.
func (u *unpacking) findings(yield func(error) bool) {
	u.fed.more = func() bool { return yield(nil) }
	err := u.decode()
	switch {
	case err == nil, errors.Is(err, errClosed):
	case u.fed.end != nil && !errors.Is(u.fed.end, io.EOF): // the body broke off, which is told as it is
	case isDenied(err):
		yield(err)
	case u.strict != nil:
		yield(u.strict(err))
	}
}

// decode searches all that the body says.
func (u *unpacking) decode() error {
	body, err := u.open(&u.fed)
	if err != nil {
		return errUnknownCoding
	}
	buf := make([]byte, 16<<10)
	for said := int64(0); ; {
		n, err := body.Read(buf)
		if name, leaked := u.look.look(buf[:n]); leaked {
			return u.look.refuse(name, "compressed body")
		}
		switch said += int64(n); {
		case said > growthFree && said/growth > u.fed.total:
			return errGrows
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errClosed):
			return err
		case err != nil:
			return errDamaged
		}
	}
}

// Close implements [io.Closer].
func (u *unpacking) Close() error {
	u.mu.Lock()
	if u.stop != nil {
		u.stop()
	}
	u.done = true
	u.mu.Unlock()
	return u.ReadCloser.Close()
}

// unpack has the body of r searched for what it says under its codings. With a
// credential, a body that cannot be looked into is refused.
func (cc *clientCell) unpack(p gate.Pass, r *http.Request) error {
	var strict func(error) error
	if p.Decision().Credential != "" {
		strict = func(err error) error { return denied(p, rules.BadRequest, err) }
	}
	open, err := packed(r.Header)
	switch {
	case err != nil && strict != nil:
		return strict(err)
	case err != nil || open == nil:
		return nil
	}
	r.Body = &unpacking{ReadCloser: r.Body, look: guarded{finder: cc.finder, r: &http.Request{}, pass: p}, strict: strict, open: open}
	return nil
}
