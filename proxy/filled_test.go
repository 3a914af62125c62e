package proxy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sallyport/audit"
)

// filling is a place that a credential is bound to, as a client writes it.
type filling struct {
	name, credential string
	put              func(s *shot, text string)
	want             func(secret string) string // what the origin sees
	late             bool
}

func put(f func(*shot, []string)) func(*shot, string) {
	return func(s *shot, text string) { f(s, []string{text}) }
}

func plainly(before, behind string) func(string) string {
	return func(secret string) string { return before + secret + behind }
}

func basicOf(pair string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(pair))
}

var fillings = []filling{
	{"bearer", "bearer", put(inField("Authorization", "Bearer ", "")), plainly("Authorization: Bearer ", "\n"), false},
	{"bearer, bare", "bearer", put(inField("Authorization", "", "")), plainly("Authorization: Bearer ", "\n"), false},
	{"bearer, as a user's password", "bearer", func(s *shot, text string) { s.header.Set("Authorization", basicOf("u:"+text)) }, plainly("Authorization: Bearer ", "\n"), false},
	{"header", "header", put(inField("X-Api-Key", "", "")), plainly("X-Api-Key: ", "\n"), false},
	{"header, in lower case", "header", func(s *shot, text string) { s.header["x-api-key"] = []string{text} }, plainly("X-Api-Key: ", "\n"), false},
	{"basic", "basic", func(s *shot, text string) { s.header.Set("Authorization", basicOf("me:"+text)) }, func(secret string) string { return "Authorization: " + basicOf("x:"+secret) + "\n" }, false},
	{"query", "query", func(s *shot, text string) { s.query = "a=1&key=" + text + "&b=%41" }, plainly("/query?a=1&b=%41&key=", "\n"), false},
	{"JSON", "body", put(inBody("application/json", `{"a":1,"token":"`, `"}`)), plainly(`{"a":1,"token":"`, `"}`), true},
	{"JSON, within", "body", put(inBody("application/json", `{"auth":[{"keys":["`, `"]}]}`)), plainly(`{"auth":[{"keys":["`, `"]}]}`), true},
	{"form", "body", put(inBody(form, "a=1&token=", "&b=2")), plainly("a=1&token=", "&b=2"), true},
	{"multipart", "body", put(inBody(parts, part("token"), "\r\n--b0--\r\n")), plainly(part("token"), "\r\n--b0--\r\n"), true},
}

// fill sends a placeholder in its own place, and a key of the caller's own.
func (s *sender) fill(host string, f filling) {
	s.t.Helper()
	name := host + ", " + f.name
	shoot := func(text string) fired {
		path := "/" + f.credential
		sh := &shot{host: host, path: path, header: http.Header{}}
		f.put(sh, text)
		return s.fire(sh)
	}
	stand, secret := s.stands[f.credential], s.secrets[f.credential]
	got := shoot(stand)
	if !s.w.secure {
		if got.status != 403 || got.reason != "credential_needs_tls" || got.told() != "refuse credential_needs_tls, credential credential_needs_tls" || got.saw() != "" {
			s.t.Errorf("%s: %d %s, records %s, the origin saw %q", name, got.status, got.reason, got.told(), got.saw())
		}
		return
	}
	if got.status != 200 || got.told() != "admit allowed, credential allowed, done allowed" {
		s.t.Errorf("%s: %d %s, records %s", name, got.status, got.reason, got.told())
	}
	if saw, want := got.saw(), f.want(secret); strings.Count(saw, want) != 1 || strings.Contains(saw, stand) || strings.Count(saw, secret) > 1 {
		s.t.Errorf("%s: the origin saw %q, want %q in it", name, saw, want)
	}
	own := shoot(innocent(stand))
	told := "refuse foreign_credential, credential foreign_credential"
	if f.late {
		told = "admit allowed, credential allowed, done foreign_credential, credential foreign_credential"
	}
	if own.status != 403 || own.reason != "foreign_credential" || own.told() != told || strings.Contains(own.saw(), innocent(stand)) {
		s.t.Errorf("%s, a caller's own: %d %s, records %s, the origin saw %q", name, own.status, own.reason, own.told(), own.saw())
	}
}

// frame is one of a WebSocket, as a client sends it (RFC 6455 section 5.2).
func frame(opcode byte, last bool, payload string) []byte {
	if last {
		opcode |= 0x80
	}
	out := []byte{opcode}
	switch n := len(payload); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	default:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	}
	mask := []byte{1, 2, 3, 4}
	out = append(out, mask...)
	for i := range len(payload) {
		out = append(out, payload[i]^mask[i&3])
	}
	return out
}

const (
	textFrame, binaryFrame, moreFrame, closeFrame, pingFrame = 1, 2, 0, 8, 9
)

// message is a place in what is sent over a WebSocket.
type message struct {
	name, path string
	frames     func(text string) [][]byte
	// want is the reason of the close frame, or what the origin sees with secret.
	want   string
	secret func(string) string
}

var messages = []message{
	{name: "text", path: "/free/s", want: "placeholder_leak", frames: func(x string) [][]byte {
		return [][]byte{frame(textFrame, true, `{"note":"`+x+`"}`)}
	}},
	{name: "binary", path: "/free/s", want: "placeholder_leak", frames: func(x string) [][]byte {
		return [][]byte{frame(binaryFrame, true, "\x00"+x)}
	}},
	{name: "two frames", path: "/free/s", want: "placeholder_leak", frames: func(x string) [][]byte {
		return [][]byte{frame(textFrame, false, x[:9]), frame(moreFrame, true, x[9:])}
	}},
	{name: "two frames, a ping between", path: "/free/s", want: "placeholder_leak", frames: func(x string) [][]byte {
		return [][]byte{frame(textFrame, false, x[:9]), frame(pingFrame, true, "hi"), frame(moreFrame, true, x[9:])}
	}},
	{name: "ping", path: "/free/s", want: "placeholder_leak", frames: func(x string) [][]byte {
		return [][]byte{frame(pingFrame, true, x), frame(textFrame, true, "over")}
	}},
	{name: "second message", path: "/socket", want: "placeholder_leak", frames: func(x string) [][]byte {
		return [][]byte{frame(textFrame, true, "{}"), frame(textFrame, true, `{"token":"`+x+`"}`)}
	}},
	{name: "first message, another field", path: "/socket", want: "placeholder_leak", frames: func(x string) [][]byte {
		return [][]byte{frame(textFrame, true, `{"note":"`+x+`"}`)}
	}},
	{name: "first message", path: "/socket", secret: plainly(`{"token":"`, `"}`), frames: func(x string) [][]byte {
		return [][]byte{frame(textFrame, true, `{"token":"`+x+`"}`)}
	}},
	{name: "first message, two frames", path: "/socket", secret: plainly(`{"token":"`, `"}`), frames: func(x string) [][]byte {
		return [][]byte{frame(textFrame, false, `{"token":"`+x[:7]), frame(moreFrame, true, x[7:]+`"}`)}
	}},
}

// speak opens a WebSocket, sends frames, and returns the status, and what is said at
// last: in the close frame, or else in answer to the message that is no {}.
func (s *sender) speak(host, path string, refused bool, frames [][]byte) (status int, said string, got fired) {
	s.t.Helper()
	s.count++
	id := strconv.Itoa(s.count) + " socket " + s.w.name
	c, prefix := s.w.raw(s.t, s.lab, host)
	fmt.Fprintf(c, "GET %s%s HTTP/1.1\r\nHost: %s\r\n%s: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", prefix, path, host, caseField, id)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	must(s.t, err)
	got = fired{reason: resp.Header.Get("Sallyport-Reason"), saw: func() string { return s.ledger.of(id) }}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		for _, f := range frames {
			if _, err := c.Write(f); err != nil {
				break // refused, and closed
			}
		}
		for refused || said == "" || said == "2" {
			opcode, payload, err := readFrame(in)
			if err != nil {
				break
			}
			if opcode == closeFrame || !refused && (opcode == textFrame || opcode == binaryFrame) {
				said = payload
			}
		}
	}
	c.Close()
	got.records = s.closing()
	return resp.StatusCode, said, got
}

func readFrame(in *bufio.Reader) (opcode byte, payload string, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(in, head); err != nil {
		return 0, "", err
	}
	n := int(head[1] & 0x7f)
	if n == 126 {
		var long [2]byte
		if _, err := io.ReadFull(in, long[:]); err != nil {
			return 0, "", err
		}
		n = int(binary.BigEndian.Uint16(long[:]))
	}
	b := make([]byte, n)
	_, err = io.ReadFull(in, b)
	return head[0] & 0x0f, string(b), err
}

// overSocket sends a placeholder over a WebSocket, and its twin.
func (s *sender) overSocket(host string, m message) {
	s.t.Helper()
	name := host + ", WebSocket, " + m.name
	stand := s.stands["socket"]
	if m.path == "/free/s" {
		stand = s.stands["bearer"]
	}
	if m.path == "/socket" && !s.w.secure {
		if status, _, got := s.speak(host, m.path, false, nil); status != 403 || got.reason != "credential_needs_tls" || got.told() != "refuse credential_needs_tls, credential credential_needs_tls" {
			s.t.Errorf("%s: %d %s, records %s", name, status, got.reason, got.told())
		}
		return
	}
	begun := "admit allowed, "
	if m.path == "/socket" {
		begun += "credential allowed, "
	}
	if m.secret == nil { // a field that takes a key is none for another text
		if status, said, got := s.speak(host, m.path, false, m.frames(innocent(stand))); status != 101 || strings.Contains(said, "[") || got.told() != begun+"done allowed" {
			s.t.Errorf("%s, twin: %d %q, records %s", name, status, said, got.told())
		}
	}
	status, said, got := s.speak(host, m.path, m.secret == nil, m.frames(stand))
	switch saw := got.saw(); {
	case m.secret != nil:
		want := m.secret(s.secrets["socket"])
		if status != 101 || said != strconv.Itoa(len(want)) || !strings.Contains(saw, want) || strings.Contains(saw, stand) || got.told() != begun+"done allowed" {
			s.t.Errorf("%s: %d %q, records %s, the origin saw %q", name, status, said, got.told(), saw)
		}
	case status != 101 || !strings.Contains(said, m.want+" [request ") || got.told() != begun+"done "+m.want+", credential "+m.want || strings.Contains(saw, stand) || strings.Contains(saw, stand[9:]):
		s.t.Errorf("%s: %d %q, records %s, the origin saw %q", name, status, said, got.told(), saw)
	}
}

// inName asks for a host of which a label is a placeholder, and for its twin.
func (s *sender) inName(zone string) {
	s.t.Helper()
	client := s.w.client(s.lab)
	if zone == ".open.test" { // not inspected: what the sandbox verifies is the origin itself
		client.Transport.(*http.Transport).TLSClientConfig.RootCAs = s.origin.pool
	}
	stand := s.stands["header"]
	var hosts, twins []string
	for _, write := range hostSpellings {
		hosts, twins = append(hosts, write(stand)+zone), append(twins, write(innocent(stand))+zone)
	}
	for _, h := range append(append(twins, strings.ToUpper(stand)+zone), hosts...) {
		u, err := url.Parse(s.w.url(h, "/x"))
		must(s.t, err)
		resp, err := client.Do(&http.Request{Method: "GET", URL: u, Header: http.Header{caseField: {s.w.name + h}}})
		status, reason := 0, ""
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			status, reason = resp.StatusCode, resp.Header.Get("Sallyport-Reason")
		}
		client.CloseIdleConnections()
		got := fired{status: status, reason: reason, records: s.closing()}
		saw := s.ledger.of(s.w.name + h)
		switch {
		case slices.Contains(twins, h):
			if status != 200 || got.told() != "admit allowed, done allowed" || saw == "" {
				s.t.Errorf("%s, twin: %d %s, records %s: %v", h, status, reason, got.told(), err)
			}
		case got.told() != "refuse placeholder_leak, credential placeholder_leak" || status != 0 && reason != "placeholder_leak" || saw != "":
			s.t.Errorf("%s: %d %s, records %s: %v; the origin saw %q", h, status, reason, got.told(), err, saw)
		case slices.ContainsFunc(got.records, func(r audit.Record) bool { return r.Host != "hash"+zone }):
			s.t.Errorf("%s: a record holds it: %+v", h, got.records)
		}
	}
	_ = s.dialled()
}

// fromAddress asks an origin for a path with a bearer token, from an address of the
// sandbox's side, by the explicit listener.
func (b *brokered) fromAddress(t *testing.T, ip, id, token string) (status int, reason string) {
	t.Helper()
	tr := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: b.explicitAddr}),
		TLSClientConfig: &tls.Config{RootCAs: b.roots},
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
			return d.DialContext(ctx, "tcp4", addr)
		},
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "https://one.test/bearer", nil)
	must(t, err)
	req.Header = http.Header{caseField: {id}, "Authorization": {"Bearer " + token}}
	resp, err := tr.RoundTrip(req)
	if err != nil { // the answer to CONNECT
		_, told, _ := strings.Cut(err.Error(), " [")
		reason, _, _ = strings.Cut(told, ",")
		return 403, reason
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode, resp.Header.Get("Sallyport-Reason")
}

// TestPlaceholderOfAnotherCell is JW-06: what a cell was given is worth nothing from
// another cell, which is known by where its packets come from.
func TestPlaceholderOfAnotherCell(t *testing.T) {
	b := newBrokered(t)
	second := b.secondCell(t)
	tests := []struct {
		name, ip, token, reason string
	}{
		{"another cell's", "127.0.0.2", b.stands["bearer"], "placeholder_leak"},
		{"and the other way round", "127.0.0.1", second, "placeholder_leak"},
		{"from no cell", "127.0.0.3", second, "unknown_cell"},
		{"twin, its own", "127.0.0.2", second, ""},
		{"twin, the first one's", "127.0.0.1", b.stands["bearer"], ""},
	}
	for _, tt := range tests {
		status, reason := b.fromAddress(t, tt.ip, tt.name, tt.token)
		saw := b.ledger.of(tt.name)
		switch {
		case tt.reason != "" && (status != 403 || reason != tt.reason || saw != ""):
			t.Errorf("%s: %d %s, want %s; the origin saw %q", tt.name, status, reason, tt.reason, saw)
		case tt.reason == "" && (status != 200 || !strings.Contains(saw, "Authorization: Bearer "+b.secrets["bearer"]+"\n")):
			t.Errorf("%s: %d %s; the origin saw %q", tt.name, status, reason, saw)
		}
	}
}
