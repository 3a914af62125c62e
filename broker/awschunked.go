package broker

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// unframed takes a body out of the chunks of AWS's own framing (S3 API reference,
// "Signature calculations for the authorization header: transferring payload in
// multiple chunks").
func (m message) unframed(r *http.Request) (message, error) {
	n, err := strconv.ParseInt(r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64)
	if err != nil || n < 0 || r.Body == nil {
		return message{}, errors.New("signed chunks without X-Amz-Decoded-Content-Length or a body")
	}
	m.header = r.Header.Clone()
	m.header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	m.header.Del("X-Amz-Decoded-Content-Length")
	var codings []string
	for _, line := range m.header["Content-Encoding"] {
		for c := range strings.SplitSeq(line, ",") {
			codings = append(codings, strings.TrimSpace(c))
		}
	}
	codings = slices.DeleteFunc(codings, func(c string) bool { return strings.EqualFold(c, "aws-chunked") || c == "" })
	m.header.Del("Content-Encoding")
	if len(codings) > 0 {
		m.header.Set("Content-Encoding", strings.Join(codings, ", "))
	}
	m.payload, m.length = "UNSIGNED-PAYLOAD", n
	m.body = &awsChunks{in: bufio.NewReaderSize(r.Body, 4<<10), Closer: r.Body, left: n}
	return m, nil
}

// awsChunks reads a body without the frames around its chunks.
type awsChunks struct {
	in *bufio.Reader
	io.Closer
	left  int64 // of the body
	chunk int64 // of the chunk
	begun bool  // a chunk was read: its end is due
	err   error
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
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return errAWSChunks
	}
	size, _, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), ";")
	n, err := strconv.ParseInt(size, 16, 64)
	switch {
	case err != nil || n < 0 || n > c.left:
		return errAWSChunks
	case n > 0:
		c.chunk, c.begun = n, true
		return nil
	}
	rest, err := io.ReadAll(io.LimitReader(c.in, 3))
	if err != nil || c.left != 0 || string(rest) != "\r\n" {
		return errAWSChunks
	}
	return io.EOF
}
