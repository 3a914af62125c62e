package scrub_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sallyport/broker/scrub"
)

const (
	secret  = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
	instead = "sk_test_PlAcEhOlDeR0000000000001"
)

func scrubber() *scrub.Scrubber { return scrub.New(scrub.Secret{Value: secret, Instead: instead}) }

// forms are renderings that an origin may echo.
func forms(s string) map[string]string {
	return map[string]string{
		"plain":     s,
		"JSON":      `{"authorization":"Bearer ` + s + `"}`,
		"query":     "https://x.test/?key=" + url.QueryEscape(s),
		"hex":       hex.EncodeToString([]byte(s)),
		"HEX":       strings.ToUpper(hex.EncodeToString([]byte(s))),
		"basic":     base64.StdEncoding.EncodeToString([]byte("x-access-token:" + s)),
		"%25":       escapedAs(s, "%%%02X"),
		"u":         escapedAs(s, `\u%04x`),
		"x":         escapedAs(s, `\x%02x`),
		"entity":    escapedAs(s, "&#x%x;"),
		"base64":    base64.StdEncoding.EncodeToString([]byte(s)),
		"base64, 1": base64.URLEncoding.EncodeToString([]byte("u" + s + "rest")),
		"base64, 2": base64.RawURLEncoding.EncodeToString([]byte("u:" + s)),
	}
}

// escapedAs writes every octet in a format.
func escapedAs(s, format string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, format, s[i])
	}
	return b.String()
}

// shows reports whether text shows more of the secret than its stand-in shares.
func shows(text string) bool {
	for _, f := range []string{
		secret, secret[8:20], secret[len(secret)-10:], hex.EncodeToString([]byte(secret[8:20])),
		strings.ToUpper(hex.EncodeToString([]byte(secret[8:20]))),
		escapedAs(secret[8:20], "%%%02X"), escapedAs(secret[8:20], `\u%04x`), escapedAs(secret[8:20], `\x%02x`), escapedAs(secret[8:20], "&#x%x;"),
	} {
		if strings.Contains(text, f) {
			return true
		}
	}
	for a := range 3 {
		enc := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("a", a) + secret))
		if strings.Contains(text, enc[16:36]) {
			return true
		}
	}
	return false
}

func readAll(tb testing.TB, r io.Reader) string {
	tb.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func TestTextAndBody(t *testing.T) {
	s := scrubber()
	want := forms(instead)
	for name, text := range forms(secret) {
		t.Run(name, func(t *testing.T) {
			for _, around := range []string{"", "left ", strings.Repeat("sk_test_", 5)} {
				in := around + text + " right"
				got := s.Text(in)
				body := readAll(t, s.Body(io.NopCloser(strings.NewReader(in))))
				if got != body {
					t.Errorf("text %q, body %q", got, body)
				}
				if shows(got) || len(got) != len(in) || !strings.HasPrefix(got, around) {
					t.Errorf("%q became %q", in, got)
				}
				if !strings.HasPrefix(name, "base64") && name != "basic" && got != around+want[name]+" right" {
					t.Errorf("%q became %q, want %q", in, got, around+want[name]+" right")
				}
			}
		})
	}
}

// TestNamesInAnyCase: net/http and HTTP/2 write names in other letters than they were
// sent in, in headers and in trailers.
func TestNamesInAnyCase(t *testing.T) {
	for _, name := range []string{
		secret, strings.ToLower(secret), strings.ToUpper(secret), "X-" + http.CanonicalHeaderKey(secret), "x_" + strings.ToLower(secret) + "-y",
		http.CanonicalHeaderKey(hex.EncodeToString([]byte(secret))),
	} {
		h := http.Header{name: {"1"}, "X-" + secret[:20]: {"2"}, "X-Other": {"3"}}
		scrubber().Header(h)
		if _, there := h[name]; there || len(h) != 2 {
			t.Errorf("%s: left %v", name, h)
		}
	}
}

func TestOtherTextIsLeftAlone(t *testing.T) {
	s := scrubber()
	for _, in := range []string{"", "s", secret[:15], secret[1:], strings.ToUpper(secret), instead, strings.Repeat(secret[:15], 3)} {
		if got := s.Text(in); got != in {
			t.Errorf("%q became %q", in, got)
		}
		if got := readAll(t, s.Body(io.NopCloser(iotest.OneByteReader(strings.NewReader(in))))); got != in {
			t.Errorf("body %q became %q", in, got)
		}
	}
}

// TestCutShort: error messages are cut short, also inside of what was sent.
func TestCutShort(t *testing.T) {
	for n := len(secret) / 2; n < len(secret); n++ {
		for _, end := range []string{"", "…", "..."} {
			in := `{"error":"invalid header Bearer ` + secret[:n] + end
			got := scrubber().Text(in)
			body := readAll(t, scrubber().Body(io.NopCloser(iotest.OneByteReader(strings.NewReader(in)))))
			if got != body || len(got) != len(in) || strings.Contains(got, secret[8:11]) || strings.Contains(got, secret[n-len(secret)/8-1:n]) {
				t.Errorf("%q became %q and %q", in, got, body)
			}
		}
	}
	long := strings.Repeat(secret, 5)
	if got := scrub.New(scrub.Secret{Value: long, Instead: instead}).Text(long[:120]); got != long[:120] {
		t.Errorf("twin, the beginning of a long token became %q", got)
	}
}

func TestIdleScrubberReturnsTheBodyItself(t *testing.T) {
	for _, s := range []*scrub.Scrubber{nil, {}, scrub.New(), scrub.New(scrub.Secret{Value: "short"})} {
		r := io.NopCloser(strings.NewReader("x"))
		if s.Body(r) != r || s.Text("short") != "short" {
			t.Error("an idle scrubber changed something")
		}
		if err := s.Response(&http.Response{Header: http.Header{"Content-Encoding": {"odd"}}}); err != nil {
			t.Error(err)
		}
	}
}

// pieces reads as its parts are, one a Read.
type pieces struct {
	parts []string
	err   error
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.parts) == 0 {
		return 0, p.err
	}
	n := copy(b, p.parts[0])
	p.parts[0] = p.parts[0][n:]
	if p.parts[0] == "" {
		p.parts = p.parts[1:]
	}
	if len(p.parts) == 0 && n%2 == 0 {
		return n, p.err // data and error at once, as io.Reader allows
	}
	return n, nil
}

func (p *pieces) Close() error { return nil }

// certain is a body that says that there is always more.
type certain struct{ io.ReadCloser }

func (certain) Now() bool { return true }

// TestAnySplitGivesTheSame draws texts that are full of parts of secrets.
func TestAnySplitGivesTheSame(t *testing.T) {
	other := "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
	sets := []*scrub.Scrubber{
		scrubber(),
		scrub.New(scrub.Secret{Value: secret, Instead: instead}, scrub.Secret{Value: other, Instead: "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}),
		scrub.New(scrub.Secret{Value: "abababab", Instead: "abzzzzzz"}, scrub.Secret{Value: "babababababa", Instead: "-"}, scrub.Secret{Value: "aaaaaaaab", Instead: "aaaaaaaax"}),
	}
	words := []string{
		"a", "ab", "b", "aaaa", "ba", " ", "sk_", "sk_test_", secret, secret[:10], secret[10:], other, other[:20], other[20:], "{\"", "\n",
		"%", "%73", "%7", `\u0073`, `\u00`, "&#115;", "&#", "=73", "=\r\n", "k_test_", secret[:12] + "%" + hex.EncodeToString([]byte(secret[12:13])), secret[13:],
	}
	for f := range 9 {
		i := 0
		for _, text := range forms(secret) {
			if i == f {
				words = append(words, text)
			}
			i++
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(sets).Draw(t, "set")
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 0, 30).Draw(t, "words"), "")
		src := &pieces{err: io.EOF}
		rooms := rapid.SampledFrom([]*rapid.Generator[int]{rapid.IntRange(1, 50), rapid.SampledFrom([]int{3, 5000, 9000})}).Draw(t, "rooms")
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, min(len(rest), 40)).Draw(t, "cut")
			src.parts, rest = append(src.parts, rest[:n]), rest[n:]
		}
		want := s.Text(text)
		var got []byte
		r := s.Body(src)
		if rapid.Bool().Draw(t, "certain") {
			r = s.Body(certain{src})
		}
		for {
			p := make([]byte, rooms.Draw(t, "room"))
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if string(got) != want {
			t.Fatalf("%q\nin pieces %q\nwhole     %q", text, got, want)
		}
		if len(got) != len(text) {
			t.Fatalf("%d octets became %d", len(text), len(got))
		}
	})
}

func TestBodyPassesErrorsOn(t *testing.T) {
	broken := errors.New("broken")
	b, err := io.ReadAll(scrubber().Body(&pieces{parts: []string{"abc ", secret[:14]}, err: broken}))
	if !errors.Is(err, broken) || string(b) != "abc "+secret[:14] {
		t.Errorf("read %q, %v", b, err)
	}
}

// conn is one direction of a stream that stays open.
type conn struct {
	in     chan string
	closed chan struct{}
}

func newConn() *conn { return &conn{make(chan string), make(chan struct{})} }

func (c *conn) Read(p []byte) (int, error) {
	select {
	case s, ok := <-c.in:
		if !ok {
			return 0, io.EOF
		}
		return copy(p, s), nil
	case <-c.closed:
		return 0, errStreamClosed
	}
}

var errStreamClosed = errors.New("closed")

func (c *conn) Close() error { close(c.closed); return nil }

// TestStreamsAreNotHeldUp: what cannot be a secret goes on at once, and what
// looks like a secret's first octets soon.
func TestStreamsAreNotHeldUp(t *testing.T) {
	tests := []struct {
		name, send, want string // want comes while the stream stays open
		wait             time.Duration
	}{
		{"server-sent event", "data: hello\n\n", "data: hello\n\n", 0},
		{"ends in the known prefix", "say sk_test_", "say sk_test_", 0},
		{"ends in a letter of the prefix", "yes", "yes", 0},
		{"ends in the hexadecimal of the prefix", "x736b5f", "x736b5f", 0},
		{"ends in three octets of the secret", "say sk_test_4eC", "say sk_test_4eC", 100 * time.Millisecond},
		{"ends in four octets of the secret", "say sk_test_4eC3", "say sk_test_", 0},
		{"ends in what may begin an escape", "100%", "100%", 100 * time.Millisecond},
		{"a line ends in a letter of the secret", "data: yes\n\n", "data: yes\n\n", 0},
		{"nearly all of the secret", secret[:31], "sk_test_", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newConn()
				r := scrubber().Body(c)
				start := time.Now()
				go func() { c.in <- tt.send }()
				got := make([]byte, len(tt.want))
				if _, err := io.ReadFull(r, got); err != nil || string(got) != tt.want {
					t.Fatalf("read %q, %v, want %q", got, err, tt.want)
				}
				if d := time.Since(start); d != tt.wait {
					t.Errorf("it took %v, want %v", d, tt.wait)
				}
				// The rest of the secret, whatever was let go of it, stays hidden.
				go func() { c.in <- secret[len(secret)-1:] + "."; close(c.in) }()
				if rest := readAll(t, r); shows(tt.want + rest) {
					t.Errorf("then %q", rest)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestSecretAfterAPauseIsStillReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn()
		r := scrubber().Body(c)
		go func() {
			c.in <- "key=" + secret[:10]
			time.Sleep(time.Second) // fake
			c.in <- secret[10:] + "!"
			close(c.in)
		}()
		if got, want := readAll(t, r), "key="+secret[:10]+instead[10:]+"!"; got != want {
			t.Errorf("read %q, want %q", got, want)
		}
	})
}

func TestCloseEndsARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn()
		r := scrubber().Body(c)
		go func() { c.in <- "x" + secret[:9] }()
		buf := make([]byte, 100)
		if n, err := r.Read(buf); err != nil || string(buf[:n]) != "xsk_test_" {
			t.Fatal(string(buf[:n]), err)
		}
		done := make(chan error)
		go func() { // reads aside, since little is held back
			_, err := io.ReadAll(r)
			done <- err
		}()
		synctest.Wait()
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, errStreamClosed) {
			t.Errorf("reading ended with %v", err)
		}
	})
}

type rw struct{ io.Reader }

func (rw) Write(p []byte) (int, error) { return len(p), nil }
func (rw) Close() error                { return nil }

func TestUpgradedConnectionCanBeWritten(t *testing.T) {
	resp := &http.Response{StatusCode: 101, Header: http.Header{"X-Echo": {secret}}, Body: rw{strings.NewReader("\x81\x20" + secret)}}
	if err := scrubber().Response(resp); err != nil || resp.Header.Get("X-Echo") != instead {
		t.Fatal(err, resp.Header)
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatal("it can no longer be written to")
	}
	if got := readAll(t, scrub.NewFrames(scrubber(), conn)); got != "\x81\x20"+instead {
		t.Errorf("read %q", got)
	}
}

// TestEchoes: CR-08.
func TestEchoes(t *testing.T) {
	trailer := http.Header{}
	resp := &http.Response{
		StatusCode: 200, Status: "200 " + secret, ContentLength: 40, Request: &http.Request{Method: "GET"},
		Header: http.Header{"X-Echo": {"Bearer " + secret, "ok"}, "Location": {"/?k=" + secret}, "Set-Cookie": {"s=" + secret + "; Path=/"}, "X-" + secret: {"1"}, "Content-Length": {"40"}},
		Body:   &trailerAtEnd{strings.NewReader(`{"error":"` + secret + `"}`), trailer}, Trailer: trailer,
	}
	if err := scrubber().Response(resp); err != nil {
		t.Fatal(err)
	}
	body := readAll(t, resp.Body)
	want := http.Header{"X-Echo": {"Bearer " + instead, "ok"}, "Location": {"/?k=" + instead}, "Set-Cookie": {"s=" + instead + "; Path=/"}, "Content-Length": {"40"}}
	if d := cmp.Diff(want, resp.Header); d != "" {
		t.Errorf("header (-want +got):\n%s", d)
	}
	if d := cmp.Diff(http.Header{"X-Sum": {instead}}, resp.Trailer); d != "" {
		t.Errorf("trailer (-want +got):\n%s", d)
	}
	if body != `{"error":"`+instead+`"}` || resp.Status != "200 "+instead || resp.ContentLength != 40 {
		t.Errorf("body %q, status %q, length %d", body, resp.Status, resp.ContentLength)
	}
}

type trailerAtEnd struct {
	io.Reader
	h http.Header
}

func (b *trailerAtEnd) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err != nil {
		b.h["X-Sum"] = []string{secret}
	}
	return n, err
}

func (b *trailerAtEnd) Close() error { return nil }

func TestAsk(t *testing.T) {
	h := http.Header{"Accept-Encoding": {"gzip", "br"}, "Accept-Charset": {"utf-32"}, "Grpc-Accept-Encoding": {"gzip"}, "Connect-Accept-Encoding": {"br"}, "Sec-Websocket-Extensions": {"permessage-deflate"}, "Accept": {"*/*"}}
	scrub.Ask(h)
	if d := cmp.Diff(http.Header{"Accept-Encoding": {"identity"}, "Accept": {"*/*"}}, h); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func FuzzBody(f *testing.F) {
	f.Add([]byte("x"+secret+"y"), uint8(3))
	f.Add([]byte(base64.StdEncoding.EncodeToString([]byte("u:"+secret))), uint8(1))
	f.Add([]byte(secret[:20]+secret), uint8(7))
	s := scrubber()
	f.Fuzz(func(t *testing.T, text []byte, cut uint8) {
		src := &pieces{err: io.EOF}
		for rest := string(text); rest != ""; {
			n := min(int(cut)%50+1, len(rest))
			src.parts, rest = append(src.parts, rest[:n]), rest[n:]
		}
		got := readAll(t, s.Body(src))
		if want := s.Text(string(text)); got != want {
			t.Fatalf("in pieces %q, whole %q", got, want)
		}
		if strings.Contains(got, secret) {
			t.Fatalf("%q shows the secret", got)
		}
	})
}

func BenchmarkBody(b *testing.B) {
	line := `{"id":"evt_1","object":"event","created":1724500000,"data":{"amount":1099,"currency":"eur","description":"a charge for the skipper"}}` + "\n"
	text := []byte(strings.Repeat(line, 8<<10))
	s := scrubber()
	buf := make([]byte, 32<<10)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		r := s.Body(io.NopCloser(bytes.NewReader(text)))
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// A server that sends one octet at a time, slower than patience, must not get
// more of a secret through than is let go once.
func TestSlowOctetsDoNotGetThrough(t *testing.T) {
	const slow = "reflsecret_Zq7Xw9Kp2Lm4Nb8Vc1YdH"
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go func() {
			for i := range len(slow) {
				time.Sleep(150 * time.Millisecond)
				_, _ = io.WriteString(w, slow[i:i+1])
			}
			_ = w.Close()
		}()
		s := scrub.New(scrub.Secret{Value: slow, Instead: "reflsecret_" + strings.Repeat("x", len(slow)-len("reflsecret_"))})
		got, err := io.ReadAll(s.Body(r))
		if err != nil {
			t.Fatal(err)
		}
		shown := 0
		for shown < len(got) && got[shown] == slow[shown] {
			shown++
		}
		if want := len("reflsecret_") + 3; shown > want {
			t.Errorf("%d octets of the secret came through: %q", shown, got)
		}
	})
}
