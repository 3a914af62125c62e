package e2e_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"sallyport/audit"
	"sallyport/test/lab"
)

// Where checkpoints are posted to; the name is one that httptest's certificate is for.
const (
	postName = "example.com"
	postAddr = "11.7.7.98"
)

// place takes what is posted to it, over TLS or not, until it is told to
// refuse or to let its callers wait.
type place struct {
	*httptest.Server

	mu     sync.Mutex // guards the rest
	status int
	stall  chan struct{} // closed: nobody waits
	bodies [][]byte
	came   chan struct{} // cap 1: something was tried
}

func newPlace(t *testing.T, secure bool) *place {
	p := &place{status: http.StatusOK, stall: make(chan struct{}), came: make(chan struct{}, 1)}
	close(p.stall)
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(p.take))
	if !secure {
		p.Start()
	} else {
		// Somebody else's machine: checkpoints that are posted to this one are refused.
		p.Listener.Close()
		var err error
		if p.Listener, err = net.Listen("tcp", postAddr+":0"); err != nil {
			t.Fatal(err)
		}
		p.StartTLS()
		p.URL = fmt.Sprintf("https://%s:%d", postName, p.Listener.Addr().(*net.TCPAddr).Port)
	}
	t.Cleanup(p.Close)
	return p
}

func (p *place) take(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	p.mu.Lock()
	status, stall := p.status, p.stall
	p.mu.Unlock()
	select {
	case p.came <- struct{}{}:
	default:
	}
	select {
	case <-stall:
	case <-r.Context().Done():
		return
	}
	if err == nil && status == http.StatusOK {
		p.mu.Lock()
		p.bodies = append(p.bodies, body)
		p.mu.Unlock()
	}
	rw.WriteHeader(status)
}

func (p *place) set(status int, stall chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.stall = status, stall
	select {
	case <-p.came:
	default:
	}
}

func (p *place) got() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clip(p.bodies)
}

// until asks again until ok; what it waits for happens in other processes.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("it did not happen: %s", what)
		}
	}
}

// anInstance is another instance, with a log of its own that is a year old.
type anInstance struct {
	t                *testing.T
	dir, state       string
	post, collector  *place
	syslog           *syslogd
	who              *age.X25519Identity
	identity, policy string
}

// TestLogOfAnInstance runs an instance with everything that a log can have:
// bodies that are kept, anchors of each kind, collectors of each kind, old
// records that are removed; places fail and come back under a running sandbox.
func TestLogOfAnInstance(t *testing.T) {
	x := newInstance(t)
	up, err := startUpWith(other, filepath.Join(x.dir, "config.yaml"), "--ship", "otlp="+x.collector.URL+"/v1/logs",
		"--ship", "syslog=tls://"+x.syslog.addr, "--ship-ca", filepath.Join(x.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	down := sync.OnceFunc(func() {
		if err := up.stop(); err != nil {
			t.Errorf("ending it: %v\n%s", err, up.said())
		}
	})
	defer down()
	if err := loadImage(other); err != nil {
		t.Fatal(err)
	}
	t.Run("bodies are kept, for the recipient alone", x.bodies)
	t.Run("anchors fall behind and catch up", x.anchors)
	t.Run("collectors stall, die and come back", x.collectors)
	t.Run("old records are removed", x.retention)
	t.Run("each collector got all of it", x.shipped)
	down()
	t.Run("each anchor has the end of it", x.anchored)
}

func newInstance(t *testing.T) *anInstance {
	x := &anInstance{t: t, dir: filepath.Join(w.dir, "log"), state: filepath.Join("/var/lib", other)}
	for _, d := range []string{x.dir, filepath.Join(x.dir, "anchors")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gateway, err := user.Lookup("sallyport-gateway")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.Atoi(gateway.Uid)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(x.dir, "anchors"), uid, 0); err != nil {
		t.Fatal(err)
	}
	x.post, x.collector = newPlace(t, true), newPlace(t, false)
	x.syslog = newSyslogd(t, x.post.Server)
	if x.who, err = age.GenerateX25519Identity(); err != nil {
		t.Fatal(err)
	}
	x.identity, x.policy = filepath.Join(x.dir, "me.key"), filepath.Join("log", "policy.yaml")
	config := read(t, filepath.Join(w.dir, "config.yaml"))
	config = strings.Replace(config, "upstream_ca: [", "upstream_ca: ["+filepath.Join(x.dir, "ca.pem")+", ", 1)
	config += "  " + postName + ": [" + postAddr + "]\n"
	files := map[string]string{
		"ca.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: x.post.Certificate().Raw})),
		"me.key": x.who.String() + "\n",
		"config.yaml": config + fmt.Sprintf(`log:
  anchors:
    - {file: %[1]s/anchors/file}
    - {command: [/usr/bin/tee, %[1]s/anchors/command]}
    - {url: "%[2]s/checkpoints"}
  capture: {recipient: %[3]s, size: 16KiB, fields: [ssn]}
`, x.dir, x.post.URL, x.who.Recipient()),
		"policy.yaml": strings.Replace(read(t, filepath.Join(w.dir, "policy.yaml")), "    credential: lab-api\n", "    credential: lab-api\n    log: request_response\n", 1),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(x.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	x.old(uid)
	return x
}

// old writes the log of a year ago, in a few segments.
func (x *anInstance) old(uid int) {
	t := x.t
	t.Cleanup(func() {
		if err := os.RemoveAll(x.state); err != nil {
			t.Error(err)
		}
	})
	now := time.Now().AddDate(-1, 0, 0)
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(x.state, "audit"), KeyFile: filepath.Join(x.state, "audit-key", "key"),
		Now: func() time.Time { return now }, SegmentSize: 10_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := l.Append(t.Context(), &audit.Record{Kind: audit.Refuse, Run: "01AAAAAAAAAAAAAAAAAAAAAAAA", Host: "old.example", Verdict: "deny", Reason: "host_not_allowed"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"audit", "audit-key"} {
		err := filepath.WalkDir(filepath.Join(x.state, d), func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chown(path, uid, -1)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// run runs a script in a sandbox of the instance and returns its output.
func (x *anInstance) run(t *testing.T, script string) string {
	t.Helper()
	cmd := commandOf(other, "run", "-p", filepath.Join(w.dir, x.policy), image, "sh", "-c", script)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s%s", script, err, out, errs.Bytes())
	}
	return string(out)
}

// audit runs an audit command of the instance, which must succeed.
func (x *anInstance) audit(t *testing.T, args ...string) string {
	t.Helper()
	cmd := commandOf(other, append([]string{"audit"}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("audit %q: %v: %s%s", args, err, out, errs.Bytes())
	}
	return string(out)
}

// records returns what a filter finds.
func (x *anInstance) records(t *testing.T, filter string) (out []audit.Record) {
	t.Helper()
	for line := range strings.Lines(x.audit(t, "query", filter, "-o", "json")) {
		var r audit.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		out = append(out, r)
	}
	return out
}

func (x *anInstance) bodies(t *testing.T) {
	said := x.run(t, `echo "$API_TOKEN"
curl -sS -o /dev/null -w '%{http_code}\n' -H "Authorization: Bearer $API_TOKEN" -H 'Content-Type: application/json' \
  -d '{"amount":100,"password":"hunter2","ssn":"078-05-1120"}' https://`+lab.APIName+`/v1/upload
head -c 100000 /dev/zero | tr '\0' x | curl -sS -o /dev/null -w '%{http_code}\n' -H "Authorization: Bearer $API_TOKEN" \
  --data-binary @- https://`+lab.APIName+`/v1/upload`)
	words := strings.Fields(said)
	if len(words) != 3 || words[1] != "200" || words[2] != "200" {
		t.Fatalf("the sandbox said %q", said)
	}
	done := x.records(t, "kind=done path=/v1/upload")
	if len(done) != 2 {
		t.Fatalf("%d outcomes, want 2", len(done))
	}
	type kept struct {
		SHA256      string `json:"sha256"`
		Bytes, Kept int64
		Cut         bool
		Error       string
	}
	var refs [2]struct {
		Request  kept `json:"request_body"`
		Response kept `json:"response_body"`
	}
	for i := range refs {
		if err := json.Unmarshal(done[i].Data, &refs[i]); err != nil {
			t.Fatal(err)
		}
		for _, k := range []kept{refs[i].Request, refs[i].Response} {
			data, err := os.ReadFile(filepath.Join(x.state, "bodies", k.SHA256+".age"))
			if sum := sha256.Sum256(data); err != nil || hex.EncodeToString(sum[:]) != k.SHA256 || k.Error != "" {
				t.Errorf("%+v: %v, and its digest is %x", k, err, sum)
			}
			if bytes.Contains(data, []byte("amount")) {
				t.Error("a body lies there in clear")
			}
		}
	}
	if r := refs[1].Request; !r.Cut || r.Bytes != 100_000 || r.Kept != 16<<10 {
		t.Errorf("of a large body: %+v", r)
	}
	text := x.audit(t, "body", "--identity", x.identity, done[0].Ref)
	if !strings.HasPrefix(text, "POST /v1/upload HTTP/") || !strings.Contains(text, `"amount":100`) {
		t.Errorf("the request was kept as %q", text)
	}
	for _, secret := range []string{"hunter2", "078-05-1120", words[0], w.lab.Token} {
		if strings.Contains(text, secret) {
			t.Errorf("%q was kept: %q", secret, text)
		}
	}
	if text := x.audit(t, "body", "--identity", x.identity, "--response", done[0].Ref); !strings.HasPrefix(text, "HTTP 200 OK") {
		t.Errorf("the answer was kept as %q", text)
	}
}

func (x *anInstance) anchors(t *testing.T) {
	x.post.set(http.StatusServiceUnavailable, x.post.stall)
	x.run(t, "true")
	until(t, "a record says that an anchor is behind", func() bool {
		rs := x.records(t, "kind=anchor")
		return len(rs) == 1 && strings.Contains(rs[0].Error, "503") && strings.Contains(string(rs[0].Data), `"behind":true`)
	})
	if out, err := commandOf(other, "status").CombinedOutput(); err == nil || !strings.Contains(string(out), x.post.URL) {
		t.Errorf("status while an anchor is behind: %v: %s", err, out)
	}
	x.run(t, "true") // nothing waits for it
	x.post.set(http.StatusOK, x.post.stall)
	until(t, "a record says that it is not any more", func() bool {
		rs := x.records(t, "kind=anchor")
		return len(rs) == 2 && strings.Contains(string(rs[1].Data), `"behind":false`)
	})
	if st, err := os.Stat(filepath.Join(x.dir, "anchors", "file")); err != nil || st.Mode() != 0o644 {
		t.Errorf("the anchor is %v, %v", st, err)
	}
}

func (x *anInstance) collectors(t *testing.T) {
	stall := make(chan struct{})
	x.collector.set(http.StatusOK, stall)
	x.syslog.stop()
	x.run(t, "true")
	<-x.collector.came
	if said := x.run(t, "curl -sS -o /dev/null -w '%{http_code}' https://"+lab.FilesName+lab.HelloPath); said != "200" {
		t.Errorf("while collectors do not take records a request is answered %q", said)
	}
	waiting := func(collector string) string {
		out, _ := commandOf(other, "status").CombinedOutput() // exit code 1 once it is long
		_, waits, _ := strings.Cut(regexp.MustCompile(`.*`+regexp.QuoteMeta(collector)).FindString(string(out)), ", ")
		n, _, _ := strings.Cut(waits, " waiting")
		return n
	}
	until(t, "status tells of records that wait", func() bool { return waiting(x.syslog.addr) > "0" && waiting(x.collector.URL) > "0" })
	x.collector.set(http.StatusOK, x.post.stall) // the next are answered at once
	close(stall)
	x.syslog.start()
	until(t, "status tells that none wait", func() bool { return waiting(x.syslog.addr) == "0" && waiting(x.collector.URL) == "0" })
}

func (x *anInstance) retention(t *testing.T) {
	if out := x.audit(t, "retain", "--keep", "30d"); !strings.Contains(out, "records in 2 segments") {
		t.Errorf("retain said %q", out)
	}
	if old := x.records(t, "host=old.example"); len(old) > 40 { // of the segment that the instance went on with
		t.Errorf("%d old records are left", len(old))
	}
	if _, err := os.Stat(filepath.Join(x.state, "audit", "retained")); err != nil {
		t.Error(err)
	}
	out := strings.Join(strings.Fields(x.audit(t, "verify", "--anchor", filepath.Join(x.dir, "anchors", "file"))), " ")
	if !strings.Contains(out, "audit verify: ok") || !strings.Contains(out, "removed in order") {
		t.Errorf("verify said %q", out)
	}
	bundle := filepath.Join(x.dir, "case.zip")
	x.audit(t, "export", "--bundle", bundle, "--covered", "kind=done")
	if out := x.audit(t, "verify", "--bundle", bundle); !strings.Contains(out, "ok") {
		t.Errorf("verify --bundle said %q", out)
	}
}

// shipped compares what was handed over with what the log has.
func (x *anInstance) shipped(t *testing.T) {
	for _, r := range x.records(t, "seq>=0") {
		until(t, fmt.Sprintf("record %d (%s) is handed over", r.Seq, r.Kind), func() bool {
			return bytes.Contains(bytes.Join(x.collector.got(), nil), []byte(r.ID)) && strings.Contains(x.syslog.said(), r.ID)
		})
	}
}

// anchored compares, after the end, what each anchor has.
func (x *anInstance) anchored(t *testing.T) {
	newest := read(t, filepath.Join(x.dir, "anchors", "file"))
	if got := read(t, filepath.Join(x.dir, "anchors", "command")); got != newest {
		t.Errorf("the command got %q, the file %q", got, newest)
	}
	if all := x.post.got(); len(all) == 0 || string(all[len(all)-1]) != newest {
		t.Errorf("the server got %q, the file %q last", all, newest)
	}
	out := x.audit(t, "verify", "--anchor", filepath.Join(x.dir, "anchors", "file"))
	if strings.Contains(out, "not closed") || strings.Contains(out, "covered by no checkpoint") {
		t.Errorf("verify said %q", out)
	}
}

// syslogd takes messages over TLS, and can be stopped and started.
type syslogd struct {
	t    *testing.T
	addr string
	cert *httptest.Server // whose certificate it shows

	mu    sync.Mutex // guards the rest
	ln    net.Listener
	conns []net.Conn
	text  strings.Builder
	all   sync.WaitGroup
}

func newSyslogd(t *testing.T, cert *httptest.Server) *syslogd {
	s := &syslogd{t: t, addr: "127.0.0.1:0", cert: cert}
	s.start()
	t.Cleanup(s.stop)
	return s
}

// start listens where it did before.
func (s *syslogd) start() {
	ln, err := tls.Listen("tcp", s.addr, &tls.Config{Certificates: s.cert.TLS.Certificates})
	if err != nil {
		s.t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	s.mu.Lock()
	s.ln = ln
	s.mu.Unlock()
	s.all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.all.Go(func() { s.read(c) })
		}
	})
}

func (s *syslogd) read(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		s.mu.Lock()
		s.text.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// stop is what a crash would be: nothing listens, and what was open is gone.
func (s *syslogd) stop() {
	s.mu.Lock()
	_ = s.ln.Close()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.all.Wait()
}

func (s *syslogd) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}
