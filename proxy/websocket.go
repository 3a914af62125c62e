package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// errSwitched ends RoundTrip after the stream became a WebSocket: there is no
// answer left for httputil to write.
var errSwitched = errors.New("switched to websocket")

var errNotAsked = &upstreamError{"http_upgrade_failed", errors.New("upstream switched protocols without being asked")}

// switchProtocols carries a WebSocket until it ends. Upstream may not switch
// to anything else, nor without having been asked (HW-09, HW-10).
func (x *exchange) switchProtocols(resp *http.Response) error {
	up, ok := resp.Body.(io.ReadWriteCloser)
	if !x.websocket || !ok || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket") {
		return errors.Join(errNotAsked, resp.Body.Close())
	}
	defer up.Close()
	client, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return fmt.Errorf("taking over the client's connection: %w", err)
	}
	defer client.Close()
	x.status = resp.StatusCode
	resp.Body = nil // so that Write writes the head alone
	if err := errors.Join(resp.Write(rw), rw.Flush()); err != nil {
		x.err = fmt.Errorf("answering the client: %w", err)
		return errSwitched
	}
	seen, err := rw.Reader.Peek(rw.Reader.Buffered())
	if err != nil {
		return errors.Join(errSwitched, err)
	}
	sent, received, err := relay(end{client, x.st.conn.touch}, seen, up, &x.buffers)
	x.sent.Store(sent)
	x.received, x.err, x.reason = received, err, refusedBy(err)
	return errSwitched
}

// end is the sandbox's end of a stream that is carried as it is.
type end struct {
	net.Conn
	touch func()
}
