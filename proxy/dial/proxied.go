package dial

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// UpstreamProxy is an HTTP proxy that every upstream connection goes through,
// by CONNECT (RFC 9110 section 9.3.6).
//
// It is told an address, never a name: the one that was resolved here and that
// the policy agreed to. A proxy that was told the name would look it up again
// and connect to whatever it found. One that insists on names cannot be used.
type UpstreamProxy struct {
	Addr netip.AddrPort
	// User and Password, if User is not empty, are sent by basic
	// authentication (RFC 7617).
	User, Password string
}

func (u *UpstreamProxy) check() error {
	switch {
	case u == nil:
		return nil
	case !u.Addr.IsValid() || u.Addr.Port() == 0:
		return fmt.Errorf("dial: upstream proxy %v is not an address and a port", u.Addr)
	case strings.Contains(u.User, ":"):
		return errors.New("dial: the user of the upstream proxy has a colon in it (RFC 7617 section 2)")
	}
	return nil
}

// maxConnectHead bounds the proxy's answer.
const maxConnectHead = 16 << 10

// open is an [opener].
func (u *UpstreamProxy) open(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	c, err := connectOne(ctx, u.Addr)
	if err != nil {
		return nil, fmt.Errorf("upstream proxy %v: %w", u.Addr, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() }) // unblocks what follows
	err = u.ask(c, to)
	if !stop() {
		return nil, fmt.Errorf("upstream proxy %v: %w", u.Addr, ctx.Err()) // and c is closed
	}
	if err != nil {
		_ = c.Close() // of no use any more
		return nil, fmt.Errorf("upstream proxy %v: %w", u.Addr, err)
	}
	return &proxied{TCPConn: c, to: net.TCPAddrFromAddrPort(to)}, nil
}

// ask sends the CONNECT and reads the head of its answer, and not an octet
// more: the far end may speak first.
func (u *UpstreamProxy) ask(c io.ReadWriter, to netip.AddrPort) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n", to)
	if u.User != "" {
		fmt.Fprintf(&b, "Proxy-Authorization: Basic %s\r\n", base64.StdEncoding.EncodeToString([]byte(u.User+":"+u.Password)))
	}
	b.WriteString("\r\n")
	if _, err := c.Write(b.Bytes()); err != nil {
		return err
	}
	head, err := readHead(c)
	if err != nil {
		return fmt.Errorf("reading its answer: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("reading its answer: %w", err)
	}
	_ = resp.Body.Close() // empty: it ends with the head
	switch {
	case resp.StatusCode/100 == 2:
		return nil
	case resp.StatusCode == http.StatusProxyAuthRequired:
		return errors.New("it wants other credentials (407): see upstream_proxy in the configuration")
	}
	return fmt.Errorf("it refused CONNECT %s: %s", to, resp.Status)
}

// readHead reads up to the empty line, octet by octet.
func readHead(r io.Reader) ([]byte, error) {
	var head []byte
	for b := make([]byte, 1); len(head) < maxConnectHead; {
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		head = append(head, b[0])
		if bytes.HasSuffix(head, []byte("\r\n\r\n")) {
			return head, nil
		}
	}
	return nil, fmt.Errorf("its head is longer than %d octets", maxConnectHead)
}

// proxied is a connection through a proxy. It tells the address at its far end,
// which is what was vetted.
type proxied struct {
	*net.TCPConn
	to net.Addr
}

// RemoteAddr implements net.Conn.
func (p *proxied) RemoteAddr() net.Addr { return p.to }
