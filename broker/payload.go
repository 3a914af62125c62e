package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"sallyport/control"
)

// maxHashed bounds a body that has to be read before it can be signed. S3, where
// bodies are large, signs what the client declares instead.
const maxHashed = 8 << 20

// maxSigned bounds a body that the broker has to see to sign it.
const maxSigned = 1 << 20

// message is the request as it will be signed and sent: what a signature is over
// has to be known before there is one.
type message struct {
	header  http.Header
	payload string
	raw     []byte        // the body itself, if the place asks for it
	body    io.ReadCloser // nil for the request's own
	length  int64         // of body, -1 if nobody knows
}

// messageOf prepares a request for a place. It does not change the request, but
// may have read its body.
func messageOf(place control.Place, r *http.Request) (message, error) {
	m := message{header: r.Header, length: r.ContentLength}
	if !place.Payload && !place.Body {
		return m, nil
	}
	if place.Type == "aws-sigv4" {
		if declared := r.Header["X-Amz-Content-Sha256"]; len(declared) > 0 {
			return m.declared(declared, r)
		}
	}
	if r.Body == nil || r.Body == http.NoBody {
		sum := sha256.Sum256(nil)
		m.payload = hex.EncodeToString(sum[:])
		return m, nil
	}
	most := maxHashed
	if place.Body {
		most = maxSigned
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, int64(most)+1))
	switch {
	case err != nil:
		return message{}, fmt.Errorf("reading the body that is to be signed: %w", err)
	case len(b) > most:
		return message{}, fmt.Errorf("the body is larger than %d octets, and has to be read whole to be signed", most)
	case place.Body:
		m.raw = b
	}
	sum := sha256.Sum256(b)
	m.payload, m.length = hex.EncodeToString(sum[:]), int64(len(b))
	m.body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(b), r.Body}
	return m, nil
}

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

// declared goes by what an S3 client says about the body. A wrong hash is
// upstream's to refuse. Chunks that are signed one by one would have to be signed
// anew: they are taken out of their frames, and TLS alone vouches for them.
func (m message) declared(values []string, r *http.Request) (message, error) {
	m.payload = values[0]
	switch {
	case len(values) > 1:
		return message{}, errors.New("two X-Amz-Content-Sha256")
	case sha256Text.MatchString(m.payload), m.payload == "UNSIGNED-PAYLOAD", m.payload == "STREAMING-UNSIGNED-PAYLOAD-TRAILER":
		return m, nil
	case m.payload == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD":
		return m.signedChunks(r, false)
	case m.payload == "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER":
		return m.signedChunks(r, true)
	}
	return message{}, fmt.Errorf("X-Amz-Content-Sha256 %.60q cannot be signed anew", m.payload)
}

// apply makes r the message.
func (m message) apply(r *http.Request) {
	r.Header = m.header
	if m.body == nil {
		return
	}
	r.Body = m.body
	if len(r.Trailer) == 0 { // trailers need chunks
		r.ContentLength, r.TransferEncoding = m.length, nil
	}
}

// fields returns what the broker is told: nothing that no scheme signs.
func (m message) fields(place control.Place) http.Header {
	if !place.Fields {
		return nil
	}
	h := m.header.Clone()
	for _, name := range []string{"Cookie", "Accept-Encoding", "User-Agent", "Content-Length"} {
		delete(h, name)
	}
	if m.length > 0 { // as it will be sent
		h["Content-Length"] = []string{strconv.FormatInt(m.length, 10)}
	}
	for name := range h {
		if strings.HasPrefix(name, "Proxy-") {
			delete(h, name)
		}
	}
	return h
}
