package proxy

import (
	"cmp"
	"io"
	"net"
	"net/http"

	"sallyport/proxy/h1"
	"sallyport/rules/gate"
)

// meter counts octets that are about to cross, and returns how many of them may; the
// error says why the rest may not. A nil meter lets all of them.
type meter func(n int) (int, error)

// write writes as much of b as may cross.
func (m meter) write(dst io.Writer, b []byte) (n int, err error) {
	var over error
	if m != nil {
		var k int
		k, over = m(len(b))
		b = b[:k]
	}
	if len(b) > 0 {
		n, err = dst.Write(b)
	}
	return n, cmp.Or(err, over)
}

// end is the sandbox's end of a stream that is carried as it is.
type end struct {
	net.Conn
	touch           func()
	sends, receives meter
}

// endOf returns a connection as the end of a stream that was admitted by a pass.
func endOf(c net.Conn, touch func(), pass gate.Pass) end {
	e := end{Conn: c, touch: touch}
	sends, receives := pass.Bounds()
	if sends {
		e.sends = pass.Send
	}
	if receives {
		e.receives = pass.Receive
	}
	return e
}

// bound has the octets of an answer counted, if a limit is about them. What declares
// more than there is room for is refused.
func (x *exchange) bound(resp *http.Response) error {
	if _, counted := x.pass.Bounds(); !counted {
		return nil
	}
	if !h1.Bodiless(x.in.Method, resp.StatusCode) {
		if err := x.pass.Expect(resp.ContentLength); err != nil {
			return err
		}
	}
	resp.Body = &boundBody{resp.Body, x}
	return nil
}

// boundBody is an answer's body that is cut off where a limit is reached.
type boundBody struct {
	io.ReadCloser
	x *exchange
}

// Read implements [io.Reader].
func (b *boundBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return b.x.count(b.x.pass.Receive, n, err)
}

// Ready reports whether reading will not wait.
func (b *boundBody) Ready() bool { return ready(b.ReadCloser) }

// count has n octets counted that were read, with what reading them said. What is over
// a limit goes no further.
func (x *exchange) count(m meter, n int, err error) (int, error) {
	if n == 0 {
		return 0, err
	}
	k, over := m(n)
	if over != nil {
		x.overOctets.CompareAndSwap(nil, &over)
		return k, over
	}
	return k, err
}
