package lab_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/miekg/dns"

	"sallyport/test/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }

// client reaches the lab without a gateway, by its names.
func client(t *testing.T, l *lab.Lab) *http.Client {
	t.Helper()
	pem, err := os.ReadFile(l.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	tr := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			if a, ok := l.Hosts()[host]; ok {
				host = a[0].String()
			}
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(host, port))
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func start(t *testing.T) *lab.Lab {
	t.Helper()
	l, err := lab.Start(t.Context(), lab.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func do(t *testing.T, c *http.Client, method, url, token string, body io.Reader) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return resp, string(b)
}

func TestStartRefuses(t *testing.T) {
	if _, err := lab.Start(t.Context(), lab.Config{}); err == nil {
		t.Error("a lab without a directory")
	}
	if _, err := lab.Start(t.Context(), lab.Config{Dir: "/nonexistent"}); err == nil {
		t.Error("a lab in a missing directory")
	}
	l := start(t)
	if _, err := lab.Start(t.Context(), lab.Config{Dir: t.TempDir()}); err == nil {
		t.Error("a second lab beside the first")
	}
	c := client(t, l)
	if resp, _ := do(t, c, "GET", "https://"+lab.FilesName+lab.HelloPath, "", nil); resp.StatusCode != 200 {
		t.Errorf("the first lab after that: %d", resp.StatusCode)
	}
}

func TestAPIWantsItsToken(t *testing.T) {
	l := start(t)
	c := client(t, l)
	const url = "https://" + lab.APIName + "/v1/items"
	for _, token := range []string{"", "wrong", l.Token + "x", strings.ToLower(l.Token)} {
		if resp, _ := do(t, c, "GET", url, token, nil); resp.StatusCode != 401 {
			t.Errorf("token %q: %d", token, resp.StatusCode)
		}
	}
	resp, body := do(t, c, "POST", url+"?a=1", l.Token, strings.NewReader("12345"))
	var got struct {
		Method, Path, Query string
		BodyBytes           int `json:"body_bytes"`
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d, %v: %s", resp.StatusCode, err, body)
	}
	if got.Method != "POST" || got.Path != "/v1/items" || got.Query != "a=1" || got.BodyBytes != 5 {
		t.Errorf("echoed %+v", got)
	}
	if strings.Contains(body, l.Token) {
		t.Error("the echo holds the token")
	}
	seen := l.API.Seen()
	last := seen[len(seen)-1]
	if len(seen) != 5 || last.Header.Get("Authorization") != "Bearer "+l.Token || last.Proto != "HTTP/2.0" || last.SNI != lab.APIName {
		t.Errorf("seen %d, last %+v", len(seen), last)
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+lab.APIName+"/basic/x", nil)
	req.SetBasicAuth("lab", l.Token)
	if resp, err := c.Do(req); err != nil || resp.StatusCode != 200 {
		t.Errorf("basic: %v", err)
	}
	req, _ = http.NewRequestWithContext(t.Context(), "GET", "https://"+lab.APIName+"/key/x", nil)
	req.Header.Set("X-Api-Key", l.Token)
	if resp, err := c.Do(req); err != nil || resp.StatusCode != 200 {
		t.Errorf("key: %v", err)
	}
	if text, err := os.ReadFile(l.TokenFile); err != nil || string(text) != l.Token+"\n" {
		t.Errorf("the token's file: %q, %v", text, err)
	}
}

func TestAPIServes(t *testing.T) {
	l := start(t)
	c := client(t, l)
	api := "https://" + lab.APIName
	if resp, body := do(t, c, "GET", api+"/v1/reflect", l.Token, nil); !strings.Contains(body, l.Token) || !strings.Contains(resp.Header.Get("X-Reflected"), l.Token) {
		t.Errorf("reflect: %s", body)
	}
	if _, body := do(t, c, "GET", api+"/v1/events?n=5&every=1ms", l.Token, nil); strings.Count(body, "data: ") != 5 {
		t.Errorf("events: %q", body)
	}
	if _, body := do(t, c, "GET", api+"/v1/download?bytes=1000000", l.Token, nil); len(body) != 1000000 {
		t.Errorf("download: %d", len(body))
	}
	if _, body := do(t, c, "POST", api+"/v1/upload", l.Token, strings.NewReader(strings.Repeat("x", 1<<20))); !strings.Contains(body, "1048576") {
		t.Errorf("upload: %s", body)
	}
	if resp, _ := do(t, c, "GET", api+"/v1/trailers", l.Token, nil); resp.Trailer.Get("X-Checksum") == "" {
		t.Errorf("trailers: %v", resp.Trailer)
	}
	if resp, _ := do(t, c, "GET", api+"/v1/redirect?code=307&to=https://"+lab.ForbiddenName+"/", l.Token, nil); resp.StatusCode != 307 {
		t.Errorf("redirect: %d", resp.StatusCode)
	}
	if resp, _ := do(t, c, "GET", api+"/v1/status?code=503", l.Token, nil); resp.StatusCode != 503 {
		t.Errorf("status: %d", resp.StatusCode)
	}
	if _, body := do(t, c, "GET", api+"/v1/slow?after=1ms", l.Token, nil); body != "at last\n" {
		t.Errorf("slow: %q", body)
	}
	if resp, body := do(t, c, "GET", api+"/v1/early", l.Token, nil); resp.StatusCode != 200 || body != "late\n" {
		t.Errorf("early: %d %q", resp.StatusCode, body)
	}
	ws, _, err := websocket.Dial(t.Context(), "wss://"+lab.APIName+"/v1/ws", &websocket.DialOptions{
		HTTPClient: c, HTTPHeader: http.Header{"Authorization": {"Bearer " + l.Token}},
		CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1)
	for _, size := range []int{0, 1, 1 << 20} {
		want := strings.Repeat("x", size)
		if err := ws.Write(t.Context(), websocket.MessageText, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := ws.Read(t.Context()); err != nil || string(got) != want {
			t.Errorf("WebSocket, %d octets: got %d, %v", size, len(got), err)
		}
	}
	if err := l.Forbidden.Untouched(); err != nil {
		t.Error(err)
	}
}

func TestFilesAndRanges(t *testing.T) {
	l := start(t)
	c := client(t, l)
	if _, body := do(t, c, "GET", "https://"+lab.FilesName+lab.HelloPath, "", nil); body != lab.HelloText {
		t.Errorf("hello: %q", body)
	}
	if _, body := do(t, c, "GET", "http://"+lab.FilesName+lab.HelloPath, "", nil); body != lab.HelloText {
		t.Errorf("hello, plain: %q", body)
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+lab.FilesName+lab.BigPath, nil)
	req.Header.Set("Range", "bytes=10-19")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 206 || string(b) != "abcdefghij" {
		t.Errorf("range: %d %q", resp.StatusCode, b)
	}
	if resp, _ := do(t, c, "HEAD", "https://"+lab.FilesName+lab.BigPath, "", nil); resp.ContentLength != lab.BigSize {
		t.Errorf("size %d", resp.ContentLength)
	}
}

// TestGit clones and pushes with the real git over https.
func TestGit(t *testing.T) {
	l := start(t)
	if l.Repo == "" {
		t.Fatal("git is not installed: the demo needs it")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // git itself waits for ever
	defer cancel()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Env = []string{
			"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "GIT_SSL_CAINFO=" + l.CAFile, "GIT_CONFIG_NOSYSTEM=1",
			"GIT_TERMINAL_PROMPT=0", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t",
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	work := filepath.Join(dir, "work")
	resolve := fmt.Sprintf("http.curloptResolve=%s:443:%s", lab.FilesName, lab.FilesAddr)
	git("-c", resolve, "clone", "--quiet", "https://"+lab.FilesName+lab.GitPath, work)
	if text, err := os.ReadFile(filepath.Join(work, "README.md")); err != nil || !strings.Contains(string(text), "From the lab") {
		t.Errorf("README: %q, %v", text, err)
	}
	// A pack of more than a megabyte goes without a Content-Length.
	noise := make([]byte, 2<<20)
	f, err := os.Open("/dev/urandom")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, noise); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "noise"), noise, 0o600); err != nil {
		t.Fatal(err)
	}
	git("-C", work, "add", "noise")
	git("-C", work, "commit", "--quiet", "-m", "noise")
	// As in a sandbox (launcher.Environment): Debian 12's curl now and then stalls in a long upload over HTTP/2.
	git("-C", work, "-c", resolve, "-c", "http.version=HTTP/1.1", "push", "--quiet", "origin", "main")
	if log := git("--git-dir", l.Repo, "log", "--oneline", "main"); !strings.Contains(log, "noise") {
		t.Errorf("the repository has: %s", log)
	}
	if !slices.ContainsFunc(l.Files.Seen(), func(v lab.Visit) bool { return strings.HasSuffix(v.URI, "/git-receive-pack") }) {
		t.Error("no push was seen")
	}
}

// TestVisitorsAreSeen: whoever comes where he must not is told of.
func TestVisitorsAreSeen(t *testing.T) {
	l := start(t)
	c := client(t, l)
	for _, s := range []*lab.Site{l.Forbidden, l.Metadata, l.Internal} {
		if err := s.Untouched(); err != nil {
			t.Error(err)
		}
	}
	do(t, c, "GET", "https://"+lab.ForbiddenName+"/", "", nil)
	do(t, c, "GET", "http://"+lab.MetadataAddr.String()+"/latest/meta-data/", "", nil)
	do(t, c, "GET", fmt.Sprintf("https://%s:%d/", lab.InternalName, lab.InternalPort), "", nil)
	do(t, c, "GET", fmt.Sprintf("https://127.0.0.1:%d/", lab.InternalPort), "", nil)
	for s, n := range map[*lab.Site]int{l.Forbidden: 1, l.Metadata: 1, l.Internal: 2} {
		if err := s.Untouched(); err == nil || len(s.Seen()) != n {
			t.Errorf("%s saw %d requests: %v", s.Name, len(s.Seen()), err)
		}
		s.Reset()
		if err := s.Untouched(); err != nil {
			t.Error(err)
		}
	}
	conn, err := net.Dial("tcp", lab.ForbiddenAddr.String()+":22")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if line, _ := bufio.NewReader(conn).ReadString('\n'); !strings.HasPrefix(line, "SSH-2.0-") {
		t.Errorf("greeting %q", line)
	}
	udp, err := net.Dial("udp", lab.ForbiddenAddr.String()+":53")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	if _, err := udp.Write([]byte("data")); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for len(l.Forbidden.Datagrams()) == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond) // a datagram has no answer to wait for
	}
	if got := l.Forbidden.Datagrams(); len(got) != 1 || string(got[0]) != "data" || l.Forbidden.Connections() != 1 {
		t.Errorf("saw %q and %d connections", got, l.Forbidden.Connections())
	}
}

func TestResolver(t *testing.T) {
	l := start(t)
	ask := func(network, name string, qtype uint16) *dns.Msg {
		t.Helper()
		m := new(dns.Msg)
		m.SetQuestion(dns.Fqdn(name), qtype)
		r, _, err := (&dns.Client{Net: network}).ExchangeContext(t.Context(), m, l.Resolver.Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, network := range []string{"udp", "tcp"} {
		r := ask(network, lab.APIName, dns.TypeA)
		if len(r.Answer) != 1 || r.Answer[0].(*dns.A).A.String() != lab.APIAddr.String() {
			t.Errorf("%s: %v", network, r.Answer)
		}
		if r := ask(network, "gone.test", dns.TypeA); r.Rcode != dns.RcodeNameError {
			t.Errorf("%s: %v", network, r)
		}
	}
	l.Resolver.Script("odd.test", func(n int, q *dns.Msg) *dns.Msg {
		return lab.Reply(q, fmt.Sprintf("@ 1 A 11.7.7.%d", n+1))
	})
	for i := range 3 {
		if r := ask("udp", "odd.test", dns.TypeA); !strings.HasSuffix(r.Answer[0].String(), fmt.Sprintf("11.7.7.%d", i+1)) {
			t.Errorf("query %d: %v", i, r.Answer)
		}
	}
	qs := l.Resolver.Queries()
	if len(qs) != 7 || qs[0].TCP || !qs[2].TCP || qs[0].Name != lab.APIName+"." || qs[0].Type != "A" {
		t.Errorf("queries %+v", qs)
	}
}

// TestIsolated: a namespace with a way out is refused. A bridge with an
// address and a default route is enough of one.
func TestIsolated(t *testing.T) {
	if err := lab.Isolated(); err != nil {
		t.Fatalf("here: %v", err)
	}
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	ip("link", "add", "out0", "type", "bridge")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "out0").Run() })
	ip("addr", "add", "10.99.0.1/24", "dev", "out0")
	ip("link", "set", "out0", "up")
	if err := lab.Isolated(); err != nil {
		t.Errorf("with an empty bridge: %v", err)
	}
	ip("route", "add", "default", "via", "10.99.0.2")
	if err := lab.Isolated(); err == nil {
		t.Error("with a default route: accepted")
	}
	ip("route", "del", "default")
	ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "v0").Run() })
	ip("link", "set", "v0", "up")
	if err := lab.Isolated(); err == nil {
		t.Error("with a veth: accepted")
	}
}
