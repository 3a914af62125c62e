package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// A stream carries calls one after the other, for a small part of what a
// request of HTTP costs: the gateway asks the broker once for each request that
// needs a credential. It begins as a POST to streamPath whose body never comes.
// The server says that it is ready with an empty frame; then calls and answers
// take turns. A frame is its length in four octets, the highest first, and
//
//	a call:    one octet, that many octets of the operation's name, JSON
//	an answer: two octets of status, JSON
const streamPath = "/v1/stream"

const (
	maxFrame  = maxBody + 1<<10
	maxIdle   = 64
	frameHead = 4
	firstRead = 2 << 10 // holds nearly every frame
)

type connKey struct{}

// streams serves them, and hands everything else to its handler.
type streams struct {
	handler http.Handler

	mu    sync.Mutex // guards the rest
	open  map[net.Conn]struct{}
	ended bool
}

// ServeHTTP implements [http.Handler]. The connection of a stream is not
// hijacked, so that closing the server closes it; since the request's body is
// never read, net/http leaves the connection alone meanwhile.
func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, ok := r.Context().Value(connKey{}).(net.Conn)
	if r.URL.Path != streamPath || !ok {
		s.handler.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.open[conn] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.open, conn)
		s.mu.Unlock()
		_ = conn.Close() // net/http would say something after it
	}()
	s.serve(r.Context(), conn)
}

// end lets streams go that wait for a call, and those that have one after it.
func (s *streams) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	for conn := range s.open {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// serve answers calls until the other side hangs up, or breaks the rules.
func (s *streams) serve(ctx context.Context, conn net.Conn) {
	if _, err := conn.Write(make([]byte, frameHead)); err != nil {
		return
	}
	var buf []byte
	for {
		in, err := readFrame(conn, &buf)
		if err != nil || len(in) == 0 || len(in) < 1+int(in[0]) {
			return
		}
		op, body := string(in[1:1+in[0]]), in[1+in[0]:]
		req := (&http.Request{
			Method: http.MethodPost, URL: &url.URL{Path: op}, Host: "control", Header: http.Header{}, RequestURI: op,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}).WithContext(ctx)
		out := &answer{header: http.Header{}, frame: make([]byte, frameHead+2, firstRead)}
		s.handler.ServeHTTP(out, req)
		_, err = conn.Write(out.finish())
		clear(out.frame) // there may be a secret in it
		clear(in)
		if err != nil {
			return
		}
	}
}

// answer is a [http.ResponseWriter] that makes a frame.
type answer struct {
	header http.Header
	status int
	frame  []byte
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.frame = append(a.frame, b...)
	return len(b), nil
}

func (a *answer) finish() []byte {
	a.WriteHeader(http.StatusOK)
	binary.BigEndian.PutUint32(a.frame, uint32(len(a.frame)-frameHead))
	binary.BigEndian.PutUint16(a.frame[frameHead:], uint16(a.status))
	return a.frame
}

// readFrame reads one frame into *room, which grows. Nothing follows it: the
// other side waits.
func readFrame(conn net.Conn, room *[]byte) ([]byte, error) {
	if len(*room) == 0 {
		*room = make([]byte, firstRead)
	}
	buf := *room
	n, err := io.ReadAtLeast(conn, buf, frameHead)
	if err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(buf))
	switch have := n - frameHead; {
	case size > maxFrame:
		return nil, fmt.Errorf("a frame of %d octets", size)
	case have > size:
		return nil, errors.New("more than one frame at a time")
	case size > len(buf)-frameHead:
		grown := make([]byte, frameHead+size)
		copy(grown, buf[:n])
		*room, buf = grown, grown
	}
	if _, err := io.ReadFull(conn, buf[n:frameHead+size]); err != nil {
		return nil, err
	}
	return buf[frameHead : frameHead+size], nil
}

// exchange makes one call and returns the status and the JSON of its answer.
func (c *Client) exchange(ctx context.Context, op string, body []byte) (status int, data []byte, err error) {
	conn, err := c.stream(ctx)
	if err != nil {
		return 0, nil, err
	}
	frame := make([]byte, frameHead, frameHead+1+len(op)+len(body))
	frame = append(append(append(frame, byte(len(op))), op...), body...)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-frameHead))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, err = conn.Write(frame)
	if err == nil {
		data, err = readFrame(conn, new([]byte))
	}
	if err == nil && len(data) < 2 {
		err = io.ErrUnexpectedEOF
	}
	if !stop() && err != nil {
		err = ctx.Err()
	}
	if err != nil {
		// Whoever closed this one has closed the others as well.
		c.Close()
		return 0, nil, errors.Join(err, conn.Close())
	}
	c.keep(ctx, conn)
	return int(binary.BigEndian.Uint16(data)), data[2:], nil
}

// keep has conn carry the next call.
func (c *Client) keep(ctx context.Context, conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) < maxIdle && ctx.Err() == nil { // else its deadline may have been moved
		c.idle = append(c.idle, conn)
		return
	}
	_ = conn.Close()
}

// stream returns a stream without a call, idle or new.
func (c *Client) stream(ctx context.Context) (net.Conn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	return c.dial(ctx, streamPath)
}

// dial opens a connection whose first request, to op, has a body that never
// comes, and waits until the server says that it is ready.
func (c *Client) dial(ctx context.Context, op string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	_, err = io.WriteString(conn, "POST "+op+" HTTP/1.1\r\nHost: control\r\nTransfer-Encoding: chunked\r\n\r\n")
	if err == nil {
		var ready []byte
		if ready, err = readFrame(conn, new([]byte)); err == nil && len(ready) > 0 {
			err = errors.New("the other side does not speak frames")
		}
	}
	if !stop() && err != nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
