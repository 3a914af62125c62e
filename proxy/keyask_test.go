package proxy_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	mdns "github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/rules/detect"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
)

// keyCase is a pair of policies that differ in some keys, and what is asked under both.
type keyCase struct {
	keys []string // what it shows; the first names it
	what string   // about the keys, where they have several cases
	with string   // the policy, below its head
	twin string   // its twin
	asks []keyAsk

	files      map[string]string // that both may include
	floor, run string            // that stand above the policy, or narrow it, and not its twin
	approved   *live.Ask         // that stands beside the policy, and not its twin
}

// keyAsk is one question, what comes of it, and what comes of it under the twin.
//
// It is "METHOD URL", "tcp HOST:PORT" for a stream of anything, or "TYPE NAME" of DNS.
// What comes of it is the status or the answer, the reason in the record, its rule, and
// more where there is more: what it would have been denied for, the scope that spoke, the
// credential. "then REASON" tells a refusal after the admission, and "load TEXT" a policy
// that does not load, since TEXT.
type keyAsk struct {
	ask        string
	with, twin string
	header     string // "Name: value"
	body       int    // octets
}

const keyHead = "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: keys}\n"

func (c *keyCase) name() string {
	return strings.NewReplacer("/", "_", " ", "_").Replace(strings.TrimSpace(c.keys[0] + " " + c.what))
}

// try asks everything under the policy and under its twin.
func (w *keyWorld) try(t *testing.T, c *keyCase) {
	if c.with == c.twin && c.floor == "" && c.run == "" && c.approved == nil {
		t.Error("the twin says the same")
	}
	if !slices.ContainsFunc(c.asks, func(a keyAsk) bool { return a.with != a.twin }) {
		t.Error("nothing that is asked tells the two apart")
	}
	for _, twin := range []bool{false, true} {
		text, side := c.with, "with"
		if twin {
			text, side = c.twin, "twin"
		}
		var wants []string
		for _, a := range c.asks {
			if wants = append(wants, a.with); twin {
				wants[len(wants)-1] = a.twin
			}
		}
		p, err := c.load(text, twin, w.creds)
		if why, refused := strings.CutPrefix(wants[0], "load "); refused || err != nil {
			if !refused || err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s: the policy was loaded with %v, want %q", side, err, wants[0])
			}
			continue
		}
		approved := c.approved
		if twin {
			approved = nil
		}
		for door := range 6 {
			w.attach(t, p, approved)
			for i, a := range c.asks {
				name, got := w.one(t, &a, door, wants[i])
				if name != "" && got != wants[i] {
					t.Errorf("%s: %s, %s: %s %s\n got %s\nwant %s", side, name, c.name(), a.ask, a.header, got, wants[i])
					return // what follows would be counted with it
				}
			}
		}
	}
}

// load reads a policy as it is read for a run.
func (c *keyCase) load(text string, twin bool, creds []policyfile.Credential) (*policyfile.PolicyFile, error) {
	in := policyfile.Input{Name: "keys.yaml", Data: []byte(text), Detect: keyDetect}
	if !strings.HasPrefix(text, "apiVersion") {
		in.Data = []byte(keyHead + text)
	}
	files := fstest.MapFS{}
	for name, body := range c.files {
		files[name] = &fstest.MapFile{Data: []byte(keyHead + body)}
	}
	in.Files = files
	if c.floor != "" && !twin {
		in.Floor = &policyfile.Input{Name: "floor.yaml", Data: []byte(keyHead + c.floor)}
	}
	if c.run != "" && !twin {
		in.Run = &policyfile.Input{Name: "run.yaml", Data: []byte(keyHead + c.run)}
	}
	return policyfile.ReadPolicy(in, creds)
}

// keyDetect stands for a machine on which two package managers are configured.
func keyDetect(manager string) ([]detect.Server, error) {
	files := map[string]detect.File{
		"pip": {Path: "/etc/pip.conf", Data: []byte("[global]\nindex-url = https://pip.example.com/simple\n")},
		"npm": {Path: "/etc/npmrc", Data: []byte("registry = https://in.test/\n")},
	}
	m, _ := detect.Lookup(manager)
	f, ok := files[manager]
	if !ok {
		return nil, errors.New("nothing configures it")
	}
	return m.Find(detect.Config{Files: []detect.File{f}})
}

// one asks one question by one door, and returns the door's name, "" if it has no such door.
func (w *keyWorld) one(t *testing.T, a *keyAsk, door int, want string) (name, got string) {
	t.Helper()
	for _, r := range w.log.take() {
		t.Errorf("one record too many: %+v", linesOf([]audit.Record{r}))
	}
	w.saw.take()
	verb, what, _ := strings.Cut(a.ask, " ")
	var doors []way
	for _, x := range ways() {
		if x.secure == strings.HasPrefix(what, "https:") {
			doors = append(doors, x)
		}
	}
	switch {
	case verb == "tcp" && door < 3:
		name = []string{"transparent", "connect", "connect over h2"}[door]
		return name, w.stream(t, name, what, want)
	case verb != "tcp" && strings.Contains(what, "://") && door < len(doors):
		return doors[door].name, w.request(t, doors[door], a, want)
	case verb != "tcp" && !strings.Contains(what, "://") && door == 0:
		return "dns", w.query(t, verb, what)
	default:
		return "", ""
	}
}

// request asks for a URL; of what is asked for /nested, another is asked while it is under way.
func (w *keyWorld) request(t *testing.T, by way, a *keyAsk, want string) string {
	t.Helper()
	inside := ""
	w.nested = func() {
		w.nested = nil
		inside = w.fetch(t, by, a)
	}
	defer func() { w.nested = nil }()
	got := w.fetch(t, by, a)
	records := w.log.await(t, recordsOf(want))
	if len(records) == 0 {
		return got + " without a record"
	}
	var outer, inner []audit.Record
	for _, r := range records {
		if r.ID == records[0].ID || r.Ref == records[0].ID {
			outer = append(outer, r)
		} else {
			inner = append(inner, r)
		}
	}
	saw := w.saw.take()
	if inside != "" {
		return inside + told(inner, a.ask, by.name) + " inside " + got + told(outer, a.ask, by.name) + fmt.Sprintf(", %d seen", len(saw))
	}
	return got + told(records, a.ask, by.name) + sawOf(saw, a, records[len(records)-1])
}

// recordsOf returns how many records there are of what is expected.
func recordsOf(want string) int {
	admitted := strings.Count(want, "allowed") - strings.Count(want, "_allowed") + strings.Count(want, "learned")
	refused := strings.Count(want, " inside ") + 1 - admitted
	return 2*admitted + refused + strings.Count(want, "credential=")
}

// fetch asks for a URL and returns the status, with the header of a refusal.
func (w *keyWorld) fetch(t *testing.T, by way, a *keyAsk) string {
	t.Helper()
	method, to, _ := strings.Cut(a.ask, " ")
	client := by.client(w.lab)
	tr, _ := client.Transport.(*http.Transport)
	defer tr.CloseIdleConnections()
	if by.secure {
		tr.TLSClientConfig.RootCAs = w.both
	}
	var body io.Reader
	if a.body > 0 {
		body = strings.NewReader(strings.Repeat("x", a.body))
	}
	req, err := http.NewRequestWithContext(t.Context(), method, to, body)
	must(t, err)
	if name, value, ok := strings.Cut(a.header, ": "); ok {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	got := fmt.Sprint(resp.StatusCode)
	if err != nil {
		got += " cut"
	}
	if resp.TLS != nil && resp.TLS.PeerCertificates[0].Issuer.CommonName == "origins" {
		got += " through"
	}
	if r := resp.Header.Get("Sallyport-Reason"); r != "" {
		got += " " + r + ":"
	}
	return got
}

// told says what records say of one question, and what is odd about them.
func told(records []audit.Record, ask, door string) string {
	if len(records) == 0 {
		return " without a record"
	}
	first, last := records[0], records[len(records)-1]
	out := " " + strings.TrimSpace(first.Reason+" "+first.Rule)
	for _, x := range []struct{ name, value string }{{"would", first.WouldDeny}, {"credential", first.Credential}} {
		if x.value != "" {
			out += " " + x.name + "=" + x.value
		}
	}
	if first.Scope != "" && first.Scope != "policy" {
		out += " scope=" + first.Scope
	}
	var kinds []string
	for _, r := range records {
		kinds = append(kinds, string(r.Kind))
		if listener := strings.Fields("explicit " + door)[0]; r.Listener != listener && strings.HasPrefix(door, "transparent") == (r.Listener == "explicit") {
			out += " by " + r.Listener
		}
	}
	switch got := strings.Join(kinds, " "); got {
	case "refuse", "admit done":
	case "refuse credential": // what became of a credential is told in a record of its own
		if first.Credential == "" {
			out += " " + got
		}
	case "admit credential done":
		if first.Credential == "" {
			out += " " + got
		}
	default:
		out += " [" + got + "]"
	}
	if last.Kind == audit.Done && last.Verdict == "deny" {
		out += " then " + last.Reason
	}
	if len(last.Data) > 0 && last.Kind == audit.Done {
		out += " kept=" + strings.Trim(string(last.Data), `"`)
	}
	return out + toldPlace(first, ask)
}

// toldPlace says where a record differs in host, port, method and path from what was asked.
func toldPlace(r audit.Record, ask string) (out string) {
	verb, what, _ := strings.Cut(ask, " ")
	u, err := url.Parse(what)
	if err != nil || u.Host == "" {
		return ""
	}
	port := map[string]string{"https": "443", "http": "80"}[u.Scheme]
	if u.Port() != "" {
		port = u.Port()
	}
	if r.Host != u.Hostname() || fmt.Sprint(r.Port) != port {
		out += fmt.Sprintf(" at %s:%d", r.Host, r.Port)
	}
	if verb == "tcp" {
		return out
	}
	if r.Verdict != "tunnel" && r.Method != verb {
		out += " method=" + r.Method
	}
	if r.Verdict != "tunnel" && r.Path != u.EscapedPath() {
		out += " path=" + r.Path
	}
	return out
}

// sawOf says what is odd about what the origin saw.
func sawOf(saw []seen, a *keyAsk, last audit.Record) (out string) {
	verb, what, _ := strings.Cut(a.ask, " ")
	refused := last.Kind != audit.Done || last.Verdict == "deny"
	switch {
	case len(saw) > 1:
		return fmt.Sprintf(" seen %d times", len(saw))
	case refused && len(saw) == 0:
		return ""
	case len(saw) == 0:
		return " unseen"
	case refused:
		out = " seen"
	}
	u, err := url.Parse(what)
	if s := saw[0]; err != nil || s.Method != verb || s.URI != u.RequestURI() || s.Host != u.Host {
		out += fmt.Sprintf(" seen as %s %s%s", s.Method, s.Host, s.URI)
	}
	if key := saw[0].Header.Get("Authorization"); key == "Bearer "+keySecret {
		out += " signed"
	} else if key != "" {
		out += " with " + key
	}
	return out
}

// stream opens a stream and says what nothing that is judged would.
func (w *keyWorld) stream(t *testing.T, door string, to, want string) string {
	t.Helper()
	answer := "closed"
	c, err := opens()[door](w.lab, t.Context(), to)
	if err == nil {
		must(t, c.SetDeadline(time.Now().Add(patience)))
		_, _ = io.WriteString(c, "\x00ping\n")
		if half, ok := c.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		if b, _ := io.ReadAll(c); string(b) == "\x00ping\n" {
			answer = "echo"
		}
		c.Close()
	}
	return answer + told(w.log.await(t, recordsOf(want)), "tcp //"+to, door)
}

// query asks for a name.
func (w *keyWorld) query(t *testing.T, kind, name string) string {
	t.Helper()
	c, err := net.Dial("udp4", w.dns)
	must(t, err)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	before := len(w.resolver.Queries())
	m := new(mdns.Msg).SetQuestion(name+".", mdns.StringToType[kind])
	conn := &mdns.Conn{Conn: c}
	must(t, conn.WriteMsg(m))
	m, err = conn.ReadMsg()
	must(t, err)
	answer := mdns.RcodeToString[m.Rcode]
	if len(m.Answer) > 0 {
		answer = mdns.TypeToString[m.Answer[0].Header().Rrtype]
	} else if m.Rcode == mdns.RcodeSuccess {
		answer = "NODATA"
	}
	n := 1
	if kind != "A" && len(m.Answer) > 0 {
		n = 2 // that it is asked for, and what was answered
	}
	records := w.log.await(t, n)
	if len(records) != n || records[0].Kind != audit.DNS {
		return fmt.Sprintf("%s and %d records", answer, len(records))
	}
	if n == 1 && len(w.resolver.Queries()) > before {
		answer += " asked"
	}
	return answer + " " + strings.TrimSpace(records[0].Reason+" "+records[0].Rule)
}
