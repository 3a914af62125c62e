package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"sallyport/proxy/h1"
)

// errSwitched ends an exchange whose stream became a WebSocket: there is no
// answer left to write.
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
	a, ok := x.w.(*answer)
	if !ok { // there is no upgrade in HTTP/2
		return errNotAsked
	}
	client, seen := a.take()
	defer client.Close()
	x.status = resp.StatusCode
	head := append(h1.AppendHeader([]byte("HTTP/1.1 101 Switching Protocols\r\n"), resp.Header, nil), "\r\n"...)
	if _, err := client.Write(head); err != nil {
		x.err = fmt.Errorf("answering the client: %w", err)
		return errSwitched
	}
	sent, received, err := relay(endOf(client, x.st.conn.touch, x.pass), seen, up, x.run)
	x.sent.Store(sent)
	x.received, x.err, x.reason = received, err, refusedBy(err)
	return errSwitched
}
