package proxy

import (
	"errors"
	"fmt"
	"io"

	"sallyport/proxy/sniff"
)

// peek reads until it is known what the client speaks. What was read is put
// back.
func (st *stream) peek() (sniff.Result, error) {
	// For reading alone: over HTTP/2 one for writing would end the stream as well.
	if err := st.conn.SetReadDeadline(st.run.cfg.Now().Add(st.run.cfg.Timeouts.Peek)); err != nil {
		return sniff.Result{}, err
	}
	const first = 2 << 10 // holds nearly every ClientHello
	buf := make([]byte, 0, first)
	st.silent.Store(st.run.cfg.Now().UnixNano())
	defer st.silent.Store(0)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := st.conn.Read(buf[len(buf):cap(buf)])
		if buf = buf[:len(buf)+n]; n > 0 {
			st.silent.Store(0)
		}
		res := st.recognise(buf)
		if err != nil && res.Kind == sniff.Undecided && len(buf) > 0 && errors.Is(err, io.EOF) {
			res.Kind = sniff.Opaque // the client said something that is not the start of anything
		}
		if res.Kind != sniff.Undecided {
			st.conn.early = append(buf, st.conn.early...)
			return res, st.conn.SetReadDeadline(noDeadline)
		}
		switch {
		case err == nil:
		case timedOut(err) && len(buf) > 0:
			return sniff.Result{}, fmt.Errorf("%w: %s, after %v", errSlowStart, begun(buf), st.run.cfg.Timeouts.Peek)
		case timedOut(err):
			return sniff.Result{}, fmt.Errorf("the client said nothing in %v", st.run.cfg.Timeouts.Peek)
		default:
			return sniff.Result{}, fmt.Errorf("reading the first bytes: %w", err)
		}
	}
}

// recognise tells what b begins. At the port of plain HTTP that is HTTP as well
// if it means to be: its client is told what is wrong with it, as inside TLS.
func (st *stream) recognise(b []byte) sniff.Result {
	res := sniff.Bytes(b)
	if res.Kind == sniff.Opaque && st.endpoint.Port == defaultPort(false) {
		res.Kind = sniff.Attempt(b)
	}
	return res
}

// begun says what a client did not end to say.
func begun(b []byte) string {
	if sniff.IsTLS(b) {
		return "half a ClientHello"
	}
	return "half a line"
}

// words says what an opaque stream looked like, and none of what it said.
func words(kind sniff.Kind, b []byte) string {
	switch {
	case kind == sniff.HTTP2:
		return "HTTP/2 in the clear, which is not spoken here"
	case sniff.IsTLS(b):
		return "TLS whose ClientHello cannot be read"
	case sniff.IsText(b):
		return "a line of text that is no request of HTTP"
	default:
		return "octets of no protocol that is known here"
	}
}
