package scrub

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Bodies of gRPC, and streams of Connect, are messages with five octets before each:
// flags, of which the lowest says that the message is compressed, and its length
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Length-Prefixed-Message").

const (
	messageHead = 5
	compressed  = 1
	// maxMessage bounds what of an answer is held until its length is known: what
	// clients take is four mebioctets, unless they are told otherwise.
	maxMessage = 16 << 20
)

// within are headers that say how messages within a body are compressed.
var within = []string{"Grpc-Encoding", "Connect-Content-Encoding"}

// Within returns the coding of the messages within a body, "" for none.
func Within(h http.Header) string {
	for _, name := range within {
		if v := strings.Join(h[name], ","); v != "" && !strings.EqualFold(v, "identity") {
			if strings.Contains(lower(h.Get("Content-Type")), "-text") {
				return "text" // gRPC-Web, in base64: no coding that is known
			}
			return v
		}
	}
	return ""
}

// Messages returns what the messages within a body say, one behind the other, without
// what stands between them. Closing it closes body. It reads nothing yet.
func Messages(coding string, body io.ReadCloser) (io.ReadCloser, error) {
	m, err := newMessages(coding, body)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func newMessages(coding string, body io.ReadCloser) (*messages, error) {
	if _, err := decoder(coding, http.NoBody); err != nil {
		return nil, err
	}
	m := &messages{src: body, coding: coding}
	m.left.R = bufio.NewReader(body)
	return m, nil
}

type messages struct {
	src    io.ReadCloser
	coding string
	left   io.LimitedReader // of the message under way
	said   io.Reader        // by it; nil between two
}

// next begins a message: io.EOF where the body may end.
func (m *messages) next() (flags byte, err error) {
	var head [messageHead]byte
	if _, err := io.ReadFull(m.left.R, head[:]); err != nil {
		return 0, err
	}
	m.left.N = int64(binary.BigEndian.Uint32(head[1:]))
	m.said = &m.left
	if head[0]&compressed != 0 {
		m.said, err = decoder(m.coding, io.NopCloser(&m.left))
	}
	return head[0], err
}

// end ends a message. What a decoder left of it is of no use to anybody.
func (m *messages) end() error {
	m.said = nil
	if _, err := io.Copy(io.Discard, &m.left); err != nil {
		return err
	}
	if m.left.N > 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// Read implements [io.Reader].
func (m *messages) Read(p []byte) (int, error) {
	for {
		if m.said == nil {
			if _, err := m.next(); err != nil {
				return 0, err
			}
		}
		n, err := m.said.Read(p)
		if errors.Is(err, io.EOF) {
			err = m.end()
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Close implements [io.Closer].
func (m *messages) Close() error { return m.src.Close() }

// unpacked is a body of which no message is compressed. One that was is held until it is
// whole, since its length stands before it.
type unpacked struct {
	*messages
	out []byte // of a head, and a message that was held
}

// Read implements [io.Reader].
func (u *unpacked) Read(p []byte) (n int, err error) {
	for n == 0 && err == nil {
		switch {
		case len(u.out) > 0:
			n = copy(p, u.out)
			u.out = u.out[n:]
		case u.said == nil:
			err = u.message()
		default:
			if n, err = u.said.Read(p); errors.Is(err, io.EOF) {
				err = u.end()
			}
		}
	}
	return n, err
}

// message begins the next one.
func (u *unpacked) message() error {
	flags, err := u.next()
	if err != nil {
		return err
	}
	if flags&compressed == 0 {
		u.out = binary.BigEndian.AppendUint32([]byte{flags}, uint32(u.left.N))
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(u.said, maxMessage+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxMessage:
		return fmt.Errorf("a message of an answer is larger than %d octets; send requests that are not compressed", maxMessage)
	}
	u.out = binary.BigEndian.AppendUint32([]byte{flags &^ compressed}, uint32(len(text)))
	u.out = append(u.out, text...)
	return u.end()
}
