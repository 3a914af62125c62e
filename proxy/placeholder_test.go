package proxy_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sallyport/audit"
)

// shot is a request that is being made.
type shot struct {
	host, path, query string
	header            http.Header
	body              []string // each is sent by itself: a chunk, or a frame of HTTP/2
	trailer           http.Header
}

// place is somewhere in a request that a text can be put.
type place struct {
	name string
	put  func(s *shot, pieces []string)
	late bool // it is found on the way, and not in the head
	line bool // it cannot be in two pieces: one line, or lines that are joined with something between
	// only says in which encodings it can be here, "" for all. A name has no case and
	// few characters.
	only string
	// bad is why another text in a spelling is refused there.
	bad map[string]string
	// changed is what does not arrive as it was written.
	changed bool
	// twin is why another text is refused there, "" where it is not: a place for keys.
	twin string
}

func inField(name, before, behind string) func(*shot, []string) {
	return func(s *shot, pieces []string) {
		for i, p := range pieces {
			if i == 0 {
				p = before + p
			}
			if i == len(pieces)-1 {
				p += behind
			}
			s.header.Add(name, p)
		}
	}
}

func inBody(kind, before, behind string) func(*shot, []string) {
	return func(s *shot, pieces []string) {
		s.header.Set("Content-Type", kind)
		s.body = append(append([]string{before}, pieces...), behind)
	}
}

const (
	form  = "application/x-www-form-urlencoded"
	parts = "multipart/form-data; boundary=b0"
)

func part(name string) string {
	return "--b0\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n"
}

var places = []place{
	{name: "own field, not alone", twin: "foreign_credential", put: inField("Authorization", "Bearer x", "")},
	{name: "field of another", twin: "foreign_credential", put: inField("X-Api-Key", "", "")},
	{name: "User-Agent", line: true, put: inField("User-Agent", "x/", "")},
	{name: "field", put: inField("X-Note", "see ", " there")},
	{name: "Cookie", line: true, put: inField("Cookie", "a=b; s=", "; c=d")},
	{name: "Referer", put: inField("Referer", "https://x.test/?q=", "")},
	{name: "path", line: true, changed: true, bad: map[string]string{"percent, twice": "path_ambiguous", "JSON": "path_ambiguous"}, put: func(s *shot, p []string) { s.path += "/" + p[0] + "/x" }},
	{name: "query, value", line: true, put: func(s *shot, p []string) { s.query = "a=1&b=" + p[0] + "&c" }},
	{name: "query, name", line: true, put: func(s *shot, p []string) { s.query = "a=1&" + p[0] + "=1" }},
	{name: "JSON", late: true, put: inBody("application/json", `{"note":"`, `"}`)},
	{name: "JSON, name", late: true, put: inBody("application/json", `{"a":{"`, `":1}}`)},
	{name: "form", late: true, put: inBody(form, "a=1&note=", "&b=2")},
	{name: "multipart, field", late: true, put: inBody(parts, part("note"), "\r\n--b0--\r\n")},
	{name: "multipart, file name", late: true, put: inBody(parts, "--b0\r\nContent-Disposition: form-data; name=f; filename=\"", "\"\r\n\r\nx\r\n--b0--\r\n")},
	{name: "text", late: true, put: inBody("text/plain", strings.Repeat("x", 5000), strings.Repeat("y", 5000))},
	{name: "octets", late: true, put: inBody("application/octet-stream", "\x00\xff", "\xfe\x00")},
	{name: "compressed", late: true, changed: true, put: func(s *shot, pieces []string) {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		for _, p := range pieces {
			_, _ = io.WriteString(w, p) // into memory
			_ = w.Flush()
		}
		_ = w.Close()
		s.header.Set("Content-Encoding", "gzip")
		s.body = []string{b.String()[:15], b.String()[15:]}
	}},
	{name: "messages, compressed", late: true, changed: true, put: func(s *shot, pieces []string) { // of a stream of Connect
		s.header.Set("Content-Type", "application/connect+proto")
		s.header.Set("Connect-Content-Encoding", "gzip")
		for _, p := range pieces {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			_, _ = io.WriteString(w, p) // into memory
			_ = w.Close()
			s.body = append(s.body, string(binary.BigEndian.AppendUint32([]byte{1}, uint32(b.Len())))+b.String())
		}
	}},
	{name: "trailer", late: true, put: func(s *shot, pieces []string) {
		s.body, s.trailer = []string{"x"}, http.Header{"X-Sum": pieces}
	}},
	{name: "name of a field", only: "plain", put: func(s *shot, p []string) { s.header["X-"+p[0]] = []string{"1"} }},
	{name: "name of a trailer", only: "plain", put: func(s *shot, p []string) {
		s.body, s.trailer = []string{"x"}, http.Header{"X-" + p[0]: {"1"}}
	}},
}

// spelling is a way to write a text, in one piece or in several.
type spelling struct {
	name  string
	write func(string) []string
	// lost says why it is not found: the documentation lists these.
	lost string
}

func whole(f func(string) string) func(string) []string {
	return func(s string) []string { return []string{f(s)} }
}

func base64From(enc *base64.Encoding, before string) func(string) []string {
	return whole(func(s string) string { return enc.EncodeToString([]byte(before + s)) })
}

func eachOctet(format string) func(string) string {
	return func(s string) (out string) {
		for i := range len(s) {
			out += fmt.Sprintf(format, s[i])
		}
		return out
	}
}

func percents(s string) string { return eachOctet("%%%02X")(s) }

var spellings = []spelling{
	{name: "plain", write: whole(func(s string) string { return s })},
	{name: "base64", write: base64From(base64.StdEncoding, "")},
	{name: "base64, one octet before", write: base64From(base64.StdEncoding, "?")},
	{name: "base64, two octets before", write: base64From(base64.StdEncoding, ">?")},
	{name: "base64url", write: base64From(base64.RawURLEncoding, ">?~")},
	{name: "hexadecimal", write: whole(eachOctet("%02x"))},
	{name: "hexadecimal, upper case", write: whole(eachOctet("%02X"))},
	{name: "percent", write: whole(percents)},
	{name: "percent, one octet", write: whole(func(s string) string { return s[:9] + percents(s[9:10]) + s[10:] })},
	{name: "percent, twice", write: whole(func(s string) string { return url.QueryEscape(percents(s)) })},
	{name: "JSON", write: whole(eachOctet(`\u%04x`))},
	{name: "split", write: func(s string) []string { return []string{s[:11], s[11:]} }},
	{name: "hexadecimal, mixed case", lost: "one of two to the power of its letters", write: whole(func(s string) string {
		return strings.ToUpper(hex.EncodeToString([]byte(s[:9]))) + hex.EncodeToString([]byte(s[9:]))
	})},
	{name: "base32", lost: "no API reads it", write: whole(func(s string) string { return base32.StdEncoding.EncodeToString([]byte(s)) })},
	{name: "reversed", lost: "any permutation would do", write: whole(func(s string) string {
		b := []byte(s)
		slices.Reverse(b)
		return string(b)
	})},
}

// fits reports whether a spelling can stand in a place.
func (p place) fits(s spelling) bool {
	return !(p.line && s.name == "split") && (p.only == "" || p.only == s.name)
}

// twinTold returns the records of another text in its place.
func (p place) twinTold(s spelling) string {
	switch bad := p.bad[s.name]; {
	case bad != "":
		return "refuse " + bad
	case p.twin != "":
		return "refuse " + p.twin + ", credential " + p.twin
	default:
		return "admit allowed, done allowed"
	}
}

// pieces sends each piece by itself.
type pieces struct{ rest []string }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[0])
	if p.rest[0] = p.rest[0][n:]; p.rest[0] == "" {
		p.rest = p.rest[1:]
	}
	return n, nil
}

// sender sends shots by one way, and reads what became of them.
type sender struct {
	*brokered
	t      *testing.T
	w      way
	client *http.Client
	count  int
}

// fired is what became of a shot.
type fired struct {
	status  int
	reason  string // as the sandbox is told
	records []audit.Record
	saw     func() string // what the origin saw, by now
}

func (s *sender) fire(sh *shot) fired {
	s.t.Helper()
	s.count++
	id := strconv.Itoa(s.count) + " " + s.w.name
	var body io.Reader
	if sh.body != nil {
		body = &pieces{sh.body}
	}
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", s.w.url(sh.host, "/"), body)
	must(s.t, err)
	req.URL.Opaque, req.URL.RawQuery, req.Header, req.Trailer = "//"+sh.host+sh.path, sh.query, sh.header, sh.trailer
	req.Header.Set(caseField, id)
	out := fired{saw: func() string { return s.ledger.of(id) }}
	resp, err := s.client.Do(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		out.status, out.reason = resp.StatusCode, resp.Header.Get("Sallyport-Reason")
	} else {
		s.t.Logf("%s: %v", id, err)
	}
	out.records = s.closing()
	return out
}

// closing returns the records of what was sent last.
func (s *sender) closing() (out []audit.Record) {
	s.t.Helper()
	for {
		more := s.log.await(s.t, 1)
		if len(more) == 0 {
			s.t.Errorf("no record closes %+v", linesOf(out))
			return out
		}
		// Not that of a connection which trailers ended in the moment that is told at h2Wire.
		more = slices.DeleteFunc(more, func(r audit.Record) bool { return r.Reason == "bad_request" && r.Method == "" })
		if len(more) == 0 {
			continue
		}
		out = append(out, more...)
		switch last := more[len(more)-1]; {
		case last.Kind == audit.Credential && last.Reason != "allowed":
			return out
		case (last.Kind == audit.Done || last.Kind == audit.Refuse) && !aboutCredential(last.Reason):
			return out
		}
	}
}

// aboutCredential reports whether a refusal has a record for its credential as well.
func aboutCredential(reason string) bool {
	return reason == "placeholder_leak" || reason == "foreign_credential" || strings.HasPrefix(reason, "credential_")
}

// told returns kinds and reasons of the records.
func (f fired) told() string {
	var out []string
	for _, r := range f.records {
		out = append(out, string(r.Kind)+" "+r.Reason)
	}
	return strings.Join(out, ", ")
}

// TestPlaceholders has a placeholder in every place, in every spelling, by every way,
// to origins that speak either HTTP: what is refused, as what, in which record, and
// what the origin saw. Each refusal has a twin, which has another text in its place.
func TestPlaceholders(t *testing.T) {
	b := newBrokered(t)
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			s := &sender{brokered: b, t: t, w: w, client: w.client(b.lab)}
			for _, host := range originHosts {
				for _, p := range places {
					for _, sp := range spellings {
						if p.fits(sp) {
							s.leak(host, p, sp)
						}
					}
				}
				for _, f := range fillings {
					s.fill(host, f)
				}
				if !w.h2 {
					for _, m := range messages {
						s.overSocket(host, m)
					}
				}
			}
			s.inName(".wild.test")
			if w.secure {
				s.inName(".open.test")
			}
		})
	}
}

// leak sends a placeholder where it may not be, and its twin.
func (s *sender) leak(host string, p place, sp spelling) {
	s.t.Helper()
	stand := s.stands["bearer"]
	if p.only != "" {
		stand = s.stands["header"]
	}
	shoot := func(text string) (fired, string) {
		sh := &shot{host: host, path: "/free/a", header: http.Header{}}
		p.put(sh, sp.write(text))
		return s.fire(sh), strings.Join(sp.write(text), "\x00")
	}
	name := host + ", " + p.name + ", " + sp.name
	twin, text := shoot(innocent(stand))
	if want := p.twinTold(sp); twin.told() != want {
		s.t.Errorf("%s: twin: %d %s, records %s, want %s", name, twin.status, twin.reason, twin.told(), want)
	} else if twin.status == 200 && !p.changed {
		for piece := range strings.SplitSeq(text, "\x00") {
			if saw := twin.saw(); !strings.Contains(strings.ToLower(saw), strings.ToLower(piece)) {
				s.t.Errorf("%s: twin: the origin saw %q, want %q in it", name, saw, piece)
			}
		}
	}
	got, text := shoot(stand)
	reason, told := "placeholder_leak", "refuse placeholder_leak, credential placeholder_leak"
	switch {
	case sp.lost != "":
		if got.status != twin.status || got.reason != twin.reason {
			s.t.Errorf("%s: %d %s: it is found after all, and the documentation says that it is not", name, got.status, got.reason)
		}
		return
	case p.late:
		told = "admit allowed, done placeholder_leak, credential placeholder_leak"
	}
	if got.status != 403 || got.reason != reason || got.told() != told {
		s.t.Errorf("%s: %d %s, records %s", name, got.status, got.reason, got.told())
	}
	if saw := got.saw(); strings.Contains(saw, text) || strings.Contains(saw, stand) || !p.late && saw != "" {
		s.t.Errorf("%s: the origin saw %q", name, saw)
	}
}
