package broker

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// signedChunks makes a message of a body whose chunks were signed one by one with
// the placeholder (S3 API reference, "Signature calculations for the authorization
// header: transferring payload in multiple chunks"). Each would have to be signed
// anew with a key that stays in the broker; TLS vouches for them instead
// (ADR-0013). Without a trailer the frames go as well.
func (m message) signedChunks(r *http.Request, trailer bool) (message, error) {
	n, err := strconv.ParseInt(r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64)
	if err != nil || n < 0 || r.Body == nil {
		return message{}, errors.New("signed chunks without X-Amz-Decoded-Content-Length or a body")
	}
	chunks := &awsChunks{in: bufio.NewReaderSize(r.Body, 4<<10), Closer: r.Body, left: n}
	m.header = r.Header.Clone()
	if trailer {
		if chunks.trailers = listed(m.header["X-Amz-Trailer"]); len(chunks.trailers) == 0 {
			return message{}, errors.New("chunks with a trailer without X-Amz-Trailer")
		}
		m.payload, m.length = "STREAMING-UNSIGNED-PAYLOAD-TRAILER", -1
		m.body = &awsFrames{in: chunks}
		m.header.Set("X-Amz-Content-Sha256", m.payload)
		return m, nil
	}
	m.payload, m.length, m.body = "UNSIGNED-PAYLOAD", n, chunks
	m.header.Set("X-Amz-Content-Sha256", m.payload)
	m.header.Del("X-Amz-Decoded-Content-Length")
	codings := slices.DeleteFunc(listed(m.header["Content-Encoding"]), func(c string) bool { return strings.EqualFold(c, "aws-chunked") })
	m.header.Del("Content-Encoding")
	if len(codings) > 0 {
		m.header.Set("Content-Encoding", strings.Join(codings, ", "))
	}
	return m, nil
}

// listed returns the members of a field that is a list.
func listed(lines []string) (out []string) {
	for _, line := range lines {
		for member := range strings.SplitSeq(line, ",") {
			if member = strings.TrimSpace(member); member != "" {
				out = append(out, member)
			}
		}
	}
	return out
}

// awsChunks reads a body without the frames around its chunks.
type awsChunks struct {
	in *bufio.Reader
	io.Closer
	left     int64    // of the body
	chunk    int64    // of the chunk
	begun    bool     // a chunk was read: its end is due
	trailers []string // names of fields that follow; nil for none
	tail     string   // those fields, once they are read
	err      error
}

var errAWSChunks = errors.New("the body is not in the chunks that it says it is in")

// Read implements [io.Reader].
func (c *awsChunks) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if c.chunk == 0 {
		if c.err = c.next(); c.err != nil {
			return 0, c.err
		}
	}
	n, err := c.in.Read(p[:min(int64(len(p)), c.chunk)])
	c.chunk -= int64(n)
	c.left -= int64(n)
	if err != nil {
		c.err = io.ErrUnexpectedEOF
	}
	return n, c.err
}

// next reads the head of a chunk: its size in hexadecimal, and a signature that
// is of no use any more. It returns [io.EOF] after the last one.
func (c *awsChunks) next() error {
	if c.begun {
		if end, err := c.in.Peek(2); err != nil || string(end) != "\r\n" {
			return errAWSChunks
		}
		_, _ = c.in.Discard(2) // they are there
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";")
	n, err := strconv.ParseInt(size, 16, 64)
	switch {
	case err != nil || n < 0 || n > c.left:
		return errAWSChunks
	case n > 0:
		c.chunk, c.begun = n, true
		return nil
	case c.left != 0:
		return errAWSChunks
	}
	return c.end()
}

func (c *awsChunks) line() (string, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return "", errAWSChunks
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

// trailerSignature is over the trailer, and of no use any more either.
const trailerSignature = "x-amz-trailer-signature"

// end reads what follows the last chunk: each field of the trailer that was
// announced once, and nothing else.
func (c *awsChunks) end() error {
	due := slices.Clone(c.trailers)
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		name, value, ok := strings.Cut(line, ":")
		i := slices.IndexFunc(due, func(n string) bool { return strings.EqualFold(n, name) })
		switch {
		case c.trailers != nil && strings.EqualFold(name, trailerSignature):
			continue
		case !ok || i < 0 || !httpguts.ValidHeaderFieldValue(value):
			return errAWSChunks
		}
		due = slices.Delete(due, i, i+1)
		c.tail += line + "\r\n"
	}
	if _, err := c.in.Peek(1); len(due) > 0 || !errors.Is(err, io.EOF) {
		return errAWSChunks
	}
	return io.EOF
}

// awsFrames puts chunks into frames without signatures.
type awsFrames struct {
	in  *awsChunks
	buf [32 << 10]byte
	// frame is made anew for each chunk; rest is what of it was not read yet.
	frame, rest []byte
	err         error // what follows it
}

// Close implements [io.Closer].
func (f *awsFrames) Close() error { return f.in.Close() }

// Read implements [io.Reader].
func (f *awsFrames) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		n, err := f.in.Read(f.buf[:])
		f.err, f.frame = err, f.frame[:0]
		if n > 0 {
			f.frame = append(strconv.AppendInt(f.frame, int64(n), 16), "\r\n"...)
			f.frame = append(append(f.frame, f.buf[:n]...), "\r\n"...)
		}
		if errors.Is(err, io.EOF) {
			f.frame = append(f.frame, "0\r\n"+f.in.tail+"\r\n"...)
		}
		f.rest = f.frame
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}
