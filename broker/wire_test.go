package broker_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sallyport/broker"
	"sallyport/broker/needle"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// origin echoes what it was sent, in every place an answer has.
func origin(t *testing.T, http2 bool, saw *atomic.Pointer[http.Header]) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		h := r.Header.Clone()
		saw.Store(&h)
		auth := r.Header.Get("Authorization")
		raw := []byte(strings.TrimPrefix(auth, "Bearer "))
		w.Header().Set("X-Echo", auth)
		w.Header().Set("Location", "https://api.test/?token="+string(raw))
		w.Header().Set("Set-Cookie", "session="+base64.StdEncoding.EncodeToString(raw))
		w.Header().Set("Trailer", "X-Sum")
		switch r.URL.Path {
		case "/v1/events":
			for i := range 3 {
				fmt.Fprintf(w, "data: %d %s\n\n", i, auth)
				if err := http.NewResponseController(w).Flush(); err != nil {
					panic(err)
				}
			}
		case "/v1/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprintf(z, "you sent %s", auth)
			_ = z.Close()
		case "/v1/error":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":{"message":"bad key %s"}}`, raw)
		case "/v1/split":
			for i := range raw {
				_, _ = w.Write(raw[i : i+1])
				if err := http.NewResponseController(w).Flush(); err != nil {
					panic(err)
				}
			}
		default:
			fmt.Fprintf(w, "hex %x base64 %s basic %s", raw, base64.URLEncoding.EncodeToString(raw), base64.StdEncoding.EncodeToString([]byte("u:"+string(raw))))
		}
		w.Header().Set("X-Sum", "for "+auth)
		w.Header().Set(http.TrailerPrefix+"X-Late", string(raw))
	}))
	s.EnableHTTP2 = http2
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// gateway is the least that the proxy does around the broker's client.
func gateway(t *testing.T, c *broker.Client, o *httptest.Server) *httptest.Server {
	t.Helper()
	transport := o.Client().Transport.(*http.Transport).Clone()
	transport.TLSClientConfig = transport.TLSClientConfig.Clone()
	transport.TLSClientConfig.ServerName = "example.com" // httptest's certificate
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, o.Listener.Addr().String())
	}
	transport.ForceAttemptHTTP2 = o.EnableHTTP2
	if !o.EnableHTTP2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host = "https", r.Host
		p, err := admit(t, "cell1", "run1", out, c.Find("cell1", out))
		if err == nil {
			err = c.Inject(r.Context(), p, out)
		}
		var denied *gate.DeniedError
		if errors.As(err, &denied) {
			http.Error(w, string(denied.Reason), http.StatusForbidden)
			return
		}
		rp := &httputil.ReverseProxy{
			Rewrite: func(*httputil.ProxyRequest) {}, Transport: transport, ErrorLog: log.New(t.Output(), "", 0),
			ModifyResponse: func(resp *http.Response) error { return c.Scrub(p, resp) }, FlushInterval: -1,
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
				if errors.As(err, &denied) {
					http.Error(w, string(denied.Reason), http.StatusForbidden)
					return
				}
				http.Error(w, err.Error(), http.StatusBadGateway)
			},
		}
		rp.ServeHTTP(w, out)
	}))
	t.Cleanup(front.Close)
	return front
}

// send sends a request as a sandbox would and returns all that came back, as
// octets.
func send(t *testing.T, front *httptest.Server, method, path string, header ...string) (status int, all string) {
	t.Helper()
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: api.test\r\nTE: trailers\r\nConnection: close\r\n", method, path)
	for i := 0; i+1 < len(header); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", header[i], header[i+1])
	}
	if _, err := io.WriteString(conn, b.String()+"\r\n"); err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body) // without the chunks' borders
	if err != nil {
		t.Fatalf("%s: %v in %q", path, err, raw)
	}
	return resp.StatusCode, string(raw) + string(body) + fmt.Sprint(resp.Trailer)
}

// TestOriginReflectsTheCredential: CR-08, through a reverse proxy, over HTTP/1
// and HTTP/2. Refusals of CR-04, 05, 07, 14 on the same path.
func TestOriginReflectsTheCredential(t *testing.T) {
	secrets := needle.NewSet(needle.Spellings([]byte(realToken), nil, 0))
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			k := newKit(t)
			ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
			var saw atomic.Pointer[http.Header]
			front := gateway(t, k.client, origin(t, http2, &saw))
			refusals := []struct {
				name, path string
				header     []string
				want       rules.Reason
			}{
				{"CR-04", "/v1/x?q=" + ph, nil, rules.PlaceholderLeak},
				{"CR-07", "/v1/x", []string{"User-Agent", ph}, rules.PlaceholderLeak},
				{"CR-14", "/v1/x", []string{"authorization", "Bearer ATTACKER"}, rules.ForeignCredential},
				{"CR-14 twice", "/v1/x", []string{"authorization", "Bearer " + ph, "Authorization", "Bearer ATTACKER"}, rules.ForeignCredential},
				{"CR-24", "/v2/x", []string{"Authorization", "Bearer " + ph}, rules.CredentialMismatch},
			}
			for _, tt := range refusals {
				status, all := send(t, front, "GET", tt.path, tt.header...)
				if status != http.StatusForbidden || !strings.Contains(all, string(tt.want)) || saw.Load() != nil {
					t.Errorf("%s: %d %q, the origin saw %v", tt.name, status, all, saw.Swap(nil))
				}
			}
			for _, path := range []string{"/v1/x", "/v1/events", "/v1/gzip", "/v1/error", "/v1/split"} {
				status, all := send(t, front, "GET", path, "Authorization", "Bearer "+ph, "Accept-Encoding", "gzip")
				h := saw.Swap(nil)
				if h == nil || h.Get("Authorization") != "Bearer "+realToken || len(h.Values("Authorization")) != 1 {
					t.Fatalf("twin, %s: %d %q, the origin saw %v", path, status, all, h)
				}
				if h.Get("Accept-Encoding") != "identity" {
					t.Errorf("%s: the origin was asked for %q", path, h.Get("Accept-Encoding"))
				}
				if hit, ok := needle.Next(secrets, all, 0); ok || strings.Contains(all, realToken[8:16]) {
					t.Errorf("%s: %d, the sandbox sees %q in %q", path, status, all[hit.At:min(len(all), hit.At+40)], all)
				}
				if !strings.Contains(all, ph) {
					t.Errorf("%s: nothing was echoed at all: %q", path, all)
				}
			}
		})
	}
}

// TestScrubOnlyWhereASecretWas: answers of other hosts are left as they are, and
// a detached cell's are refused.
func TestScrubOnlyWhereASecretWas(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	answer := func() *http.Response {
		return &http.Response{StatusCode: 200, Header: http.Header{"X": {realToken}, "Content-Encoding": {"odd"}}, Body: http.NoBody}
	}
	other := pass(t, "cell1", "run1", request("GET", "https://ok.test/"))
	r := request("GET", "https://api.test/v1/x")
	p := pass(t, "cell1", "run1", r)
	if err := k.client.Inject(t.Context(), p, r); err != nil {
		t.Fatal(err)
	}
	resp := answer()
	if err := k.client.Scrub(other, resp); err != nil || resp.Header.Get("X") != realToken {
		t.Errorf("another host: %v, %v", resp.Header, err)
	}
	if err := k.client.Scrub(p, resp); err != nil || strings.Contains(resp.Header.Get("X"), realToken[8:]) {
		t.Errorf("twin: %v, %v", resp.Header, err)
	}
	k.client.Detach("cell1")
	if err := k.client.Scrub(p, answer()); err == nil {
		t.Error("an answer of a detached cell was handed on")
	}
}

// TestScrubKnowsRotatedSecrets: an answer to a request with the old secret may
// come after the new one is in use.
func TestScrubKnowsRotatedSecrets(t *testing.T) {
	k := newKit(t)
	k.restart(holdNothing)
	k.grant("cell1", "run1", "api")
	r := request("GET", "https://api.test/v1/x")
	p := pass(t, "cell1", "run1", r)
	secrets := []string{realToken, "sk_test_second_second_second", "sk_test_third_third_third_third"}
	for _, s := range secrets {
		writeSecret(t, k.secret("api"), s)
		if err := k.client.Inject(t.Context(), p, r); err != nil {
			t.Fatal(err)
		}
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{"X": slices.Clone(secrets)}, Body: http.NoBody}
	if err := k.client.Scrub(p, resp); err != nil {
		t.Fatal(err)
	}
	for i, v := range resp.Header["X"] {
		if strings.Contains(v, secrets[i][8:20]) {
			t.Errorf("secret %d is seen: %q", i, v)
		}
	}
}

// TestInformationalAnswersAreScrubbed: CR-08. Early hints come before the answer, by
// another way.
func TestInformationalAnswersAreScrubbed(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	o := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</"+r.Header.Get("Authorization")+">")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(o.Close)
	for _, scrubbed := range []bool{true, false} { // the second is the control: the hint is really passed on
		r := request("GET", "https://api.test/v1/x")
		p := pass(t, "cell1", "run1", r)
		if err := k.client.Inject(t.Context(), p, r); err != nil {
			t.Fatal(err)
		}
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			if scrubbed {
				if err := k.client.Interim(p, http.Header(h)); err != nil {
					return err
				}
			}
			hints = append(hints, h.Get("Link"))
			return nil
		}})
		out := r.Clone(ctx)
		out.URL.Host = o.Listener.Addr().String()
		resp, err := o.Client().Transport.RoundTrip(out)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		want := "</Bearer " + ph + ">"
		if !scrubbed {
			want = "</Bearer " + realToken + ">"
		}
		if !slices.Equal(hints, []string{want}) {
			t.Errorf("scrubbed %v: the hints are %q", scrubbed, hints)
		}
	}
	p := pass(t, "cell1", "run1", request("GET", "https://api.test/v1/x"))
	if err := k.client.Interim(p, http.Header{}); err != nil {
		t.Errorf("twin: Interim = %v", err)
	}
	k.client.Detach("cell1")
	if k.client.Interim(p, http.Header{}) == nil {
		t.Error("an interim answer is passed on that can no longer be scrubbed")
	}
}

// TestParamsAreTheCredentialsOwn: what the dialler may send beyond what was
// admitted.
func TestParamsAreTheCredentialsOwn(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "maps", "api")
	tests := []struct {
		cell, run, url string
		want           []string
	}{
		{"cell1", "run1", "https://maps.test/", []string{"key"}},
		{"cell1", "run1", "https://api.test/", nil},
		{"cell1", "run2", "https://maps.test/", nil},
		{"cell2", "run1", "https://maps.test/", nil},
	}
	for _, tt := range tests {
		if got := k.client.Params(pass(t, tt.cell, tt.run, request("GET", tt.url))); !slices.Equal(got, tt.want) {
			t.Errorf("Params(%s %s %s) = %q, want %q", tt.cell, tt.run, tt.url, got, tt.want)
		}
	}
	if got := k.client.Params(gate.Pass{}); got != nil {
		t.Errorf("Params of no pass = %q", got)
	}
}
