package proxy

import (
	"net/http"
	"strings"

	"sallyport/rules"
)

// The headers that only we set. They are taken out of what upstream answers
// and of what a sandbox sends, so that they cannot be forged.
const (
	headerStatus  = "Proxy-Status" // RFC 9209
	headerReason  = "Sallyport-Reason"
	headerRequest = "Sallyport-Request"
	headerDeny    = "X-Deny-Reason" // a name that models have seen elsewhere
)

// ours reports whether nobody but us may set a header. Names are canonical.
func ours(name string) bool {
	return strings.HasPrefix(name, "Sallyport-") || strings.HasPrefix(name, "Proxy-") || name == headerDeny
}

// cleanRequest removes what is between the sandbox and us (RFC 9110 section
// 7.6.1), and what only we may set. It leaves Connection and Upgrade, which tell a
// WebSocket, to [forwardable], and what may hold a key to be judged first.
func cleanRequest(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "Upgrade" {
				h.Del(name)
			}
		}
	}
	for name := range h {
		switch {
		case ours(name), name == "Http2-Settings", name == "Keep-Alive", name == "Host":
			delete(h, name)
		}
	}
}

// hopByHop removes what is between two neighbours alone (RFC 9110 section
// 7.6.1): what Connection lists, and what is known to be.
func hopByHop(h http.Header) {
	for _, v := range h["Connection"] {
		for name := range strings.SplitSeq(v, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range [...]string{
		"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		delete(h, name)
	}
}

// forwardable makes the header of a request fit to be sent: what is between
// neighbours is removed or our own, nobody is told who asked, and nothing says
// that the request is another than the one that was judged.
func forwardable(h http.Header, websocket bool) {
	trailers := hasToken(h["Te"], "trailers")
	hopByHop(h)
	if trailers {
		h["Te"] = []string{"trailers"} // gRPC insists
	}
	if websocket {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	}
	for name := range h {
		if rules.Restates(name) {
			delete(h, name)
		}
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = []string{""} // or net/http would say its own
	}
}

func copyHeader(to, from http.Header) {
	for name, values := range from {
		to[name] = append(to[name], values...)
	}
}

// cleanResponse removes what upstream must not say: our own headers, and
// where else to go, past us (HW-13).
func cleanResponse(h http.Header) {
	for name := range h {
		if ours(name) {
			delete(h, name)
		}
	}
	delete(h, "Alt-Svc")
	delete(h, "Nel")
	delete(h, "Report-To")
	delete(h, "Reporting-Endpoints")
}

// trailerAllowed reports whether a request may carry a field after its body:
// none that routes or authenticates, which nobody judged (HT-07).
func trailerAllowed(name string) bool {
	switch name {
	case "Host", "Authorization", "Cookie", "Content-Length", "Transfer-Encoding", "Trailer", "Connection", "Te", "Upgrade":
		return false
	default:
		return !ours(name) && !rules.Restates(name)
	}
}

// lines counts the header lines of a request.
func lines(h http.Header) (n int) {
	for _, v := range h {
		n += len(v)
	}
	return n
}
