package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var ulids = regexp.MustCompile(`01[0-9A-HJKMNP-TV-Z]{24}`)

// TestDenialBodies holds what each family of clients gets against golden files.
func TestDenialBodies(t *testing.T) {
	tests := []struct{ name, host, method, path, header string }{
		{"text", "evil.test", "GET", "/a?token=secret", "User-Agent: curl/8"},
		{"head", "evil.test", "HEAD", "/", "User-Agent: curl/8"},
		{"git", "evil.test", "GET", "/r.git/info/refs?service=git-upload-pack", "User-Agent: git/2.39\r\nAccept: */*"},
		{"json", "evil.test", "POST", "/v1/x", "User-Agent: axios/1\r\nAccept: application/json, */*"},
		{"browser", "evil.test", "GET", "/", "Sec-Fetch-Mode: cors\r\nAccept: */*"},
		{"npm", "evil.test", "GET", "/left-pad", "User-Agent: npm/11 node/v24\r\nAccept: application/json"},
		{"openai", "api.openai.com", "POST", "/v1/responses", "User-Agent: OpenAI/Python 2\r\nAccept: application/json"},
		{"anthropic", "api.anthropic.com", "POST", "/v1/messages", "User-Agent: Anthropic/JS 1\r\nAccept: application/json"},
		{"google", "storage.googleapis.com", "GET", "/b", "Accept: application/json"},
		{"aws", "s3.amazonaws.com", "PUT", "/bucket/key", "User-Agent: Boto3/1.43"},
		{"aws-signed", "s3.amazonaws.com", "PUT", "/bucket/key", "Authorization: AWS4-HMAC-SHA256 Credential=x"},
		{"oci", "registry.test", "GET", "/v2/a/b/manifests/latest", "User-Agent: crane/1"},
		{"kubernetes", "kube.test", "GET", "/api/v1/pods", "User-Agent: kubectl/v1.32\r\nAccept: application/json;as=Table;v=v1;g=meta.k8s.io"},
		{"grpc", "evil.test", "POST", "/pkg.Service/Call", "Content-Type: application/grpc+proto\r\nTE: trailers"},
		{"websocket", "evil.test", "GET", "/", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="},
		{"method", "ok.test", "DELETE", "/public/a", ""},
		{"deny-rule", "ok.test", "GET", "/public/secret", ""},
		{"long-path", "evil.test", "GET", "/" + strings.Repeat("a", 4000), ""},
		{"bad-request", "ok.test", "GET", "/%zz", ""},
		{"mismatch", "ok.test", "GET", "/", "Host: evil.test"},
		{"upstream", "ok.test", "GET", "/", ""},
	}
	l := newLab(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l.log.take()
			c, err := l.flow(t.Context(), tt.host+":80")
			must(t, err)
			defer c.Close()
			must(t, c.SetDeadline(time.Now().Add(patience)))
			if !strings.HasPrefix(tt.header, "Host:") {
				tt.header = strings.TrimPrefix(tt.header+"\r\nHost: "+tt.host, "\r\n")
			}
			fmt.Fprintf(c, "%s %s HTTP/1.1\r\n%s\r\nContent-Length: 0\r\n\r\n", tt.method, tt.path, tt.header)
			got := dump(t, c, tt.method)
			golden(t, "denials/"+tt.name, got)
			if tt.name == "upstream" {
				l.log.await(t, 2) // admitted; or the next would take its end for its own record
				return
			}
			rec := l.log.await(t, 1)[0]
			want := strings.Fields(got)[0]
			if fmt.Sprint(rec.Status) != want || (rec.Answer == "grpc-status 7") != (tt.name == "grpc") {
				t.Errorf("the client got %s, and the record says %d %s", want, rec.Status, rec.Answer)
			}
		})
	}
	t.Run("TLS to the proxy", func(t *testing.T) {
		l.log.take()
		c, err := l.sandboxDial(t.Context(), l.explicitAddr)
		must(t, err)
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(5*time.Second))) // sooner than a head that does not end is given up
		fmt.Fprint(c, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
		golden(t, "denials/tls-to-proxy", dump(t, c, "GET"))
		if rec := l.log.await(t, 1)[0]; rec.Status != http.StatusBadRequest || rec.Reason != "bad_request" || !strings.Contains(rec.Error, "TLS to the proxy itself") {
			t.Errorf("the record: %+v", rec)
		}
		_, err = c.Read(make([]byte, 1)) // it is over
		if err == nil {
			t.Error("the connection goes on")
		}
	})
	t.Run("connect", func(t *testing.T) {
		l.log.take()
		c, err := l.sandboxDial(t.Context(), l.explicitAddr)
		must(t, err)
		defer c.Close()
		fmt.Fprint(c, "CONNECT evil.test:22 HTTP/1.1\r\nHost: evil.test:22\r\n\r\n")
		golden(t, "denials/connect", dump(t, c, "GET"))
		if rec := l.log.await(t, 1)[0]; rec.Status != http.StatusForbidden || rec.Reason != "port_not_allowed" && rec.Reason != "host_not_allowed" {
			t.Errorf("the record of the CONNECT: %+v", rec)
		}
	})
}

// TestResetsAreRecorded: a client that cannot be told why is reset, and the
// record says so; one that goes by itself was told nothing.
func TestResetsAreRecorded(t *testing.T) {
	l := newLab(t)
	c, err := l.flow(t.Context(), "evil.test:22")
	if err == nil { // else it was reset before it could be used
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("read %d, %v, want a reset", n, err)
		}
		c.Close()
	}
	if rec := l.log.await(t, 1)[0]; rec.Kind != audit.Refuse || rec.Answer != "reset" || rec.Status != 0 {
		t.Errorf("the record of the reset: %+v", rec)
	}
	c, err = l.flow(t.Context(), "evil.test:80")
	must(t, err)
	fmt.Fprint(c, "GET / HT")
	c.Close()
	if rec := l.log.await(t, 1)[0]; rec.Kind != audit.Refuse || rec.Answer != "" || rec.Status != 0 {
		t.Errorf("the record of one who went: %+v", rec)
	}
}

// dump writes an answer with what changes from run to run taken out.
func dump(t *testing.T, c net.Conn, method string) string {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	must(t, err)
	defer resp.Body.Close()
	resp.Header.Del("Date")
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n", resp.Status)
	must(t, resp.Header.Write(&b))
	fmt.Fprintf(&b, "\n%s", body)
	if strings.Contains(b.String(), "secret\n") && strings.Contains(b.String(), "token") {
		t.Error("the answer repeats the query")
	}
	return strings.ReplaceAll(ulids.ReplaceAllString(b.String(), "<id>"), "\r", "")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", filepath.FromSlash(name)+".golden")
	if *update {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); go test -update rewrites it:\n%s", name, diff)
	}
}

// TestInternal is sallyport.internal: answered here, recorded like any other
// request, never dialled, and on its own port alone (CN-17).
func TestInternal(t *testing.T) {
	l := newLab(t, func(c *proxy.Config) {
		c.Internal = &proxy.Help{
			Policy: func(cell string) (string, bool) { return "policy of " + cell + "\n", true },
			Denials: func(_ context.Context, cell string, last int) ([]proxy.Denied, error) {
				if last > 50 {
					return nil, errors.New("on cue")
				}
				return []proxy.Denied{{ID: "01J", Reason: "host_not_allowed", Host: "evil.test", Port: 443}}, nil
			},
		}
	})
	tests := []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/", 200, "You are in a sandbox"},
		{"GET", "/v1/policy", 200, "policy of " + cellID},
		{"GET", "/v1/denials?last=10", 200, `"reason":"host_not_allowed"`},
		{"GET", "/v1/denials?last=99", 503, "cannot be read"},
		{"GET", "/v1/denials?last=0", 400, "from 1 to"},
		{"GET", "/v1/denials?last=x", 400, "from 1 to"},
		{"POST", "/v1/requests", 501, "No approver is configured"},
		{"GET", "/v1/requests", 200, "[]"},
		{"DELETE", "/v1/policy", 405, "read with GET"},
		{"GET", "/metrics", 404, "nothing here"},
		{"TRACE", "/", 403, "method_not_allowed"},
	}
	for _, w := range ways() {
		if w.secure {
			continue
		}
		for _, tt := range tests {
			t.Run(w.name+" "+tt.method+" "+tt.path, func(t *testing.T) {
				req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://sallyport.internal"+tt.path, nil)
				must(t, err)
				resp, err := w.client(l).Do(req)
				must(t, err)
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != tt.status || !strings.Contains(string(body), tt.want) {
					t.Errorf("%d %s", resp.StatusCode, body)
				}
				n := 2
				if tt.status == 403 {
					n = 1
				}
				if got := l.log.await(t, n); len(got) != n {
					t.Errorf("records %+v", linesOf(got))
				}
			})
		}
	}
	_, err := l.connect(t.Context(), "sallyport.internal:443")
	must(t, err)
	wantNothingDialled(t, l)
}

// TestNewRefuses an incomplete configuration.
func TestNewRefuses(t *testing.T) {
	if _, err := proxy.New(proxy.Config{}); err == nil {
		t.Error("New of nothing succeeded")
	}
	var whole proxy.Config
	l := newLab(t, func(c *proxy.Config) { whole = *c })
	_ = l
	for name, spoil := range map[string]func(*proxy.Config){
		"gate": func(c *proxy.Config) { c.Gate = nil }, "cells": func(c *proxy.Config) { c.CellOf = nil },
		"names": func(c *proxy.Config) { c.NameOf = nil }, "dial": func(c *proxy.Config) { c.Dial = nil },
		"forward": func(c *proxy.Config) { c.Forward = nil }, "leaf": func(c *proxy.Config) { c.Leaf = nil },
		"find": func(c *proxy.Config) { c.Find = nil }, "inject": func(c *proxy.Config) { c.Inject = nil },
		"log": func(c *proxy.Config) { c.Log = nil }, "clock": func(c *proxy.Config) { c.Now = nil },
		"limit":   func(c *proxy.Config) { c.Limits.Conns = -1 },
		"timeout": func(c *proxy.Config) { c.Timeouts.Peek = -1 },
	} {
		c := whole
		spoil(&c)
		if _, err := proxy.New(c); err == nil {
			t.Errorf("New without a proper %s succeeded", name)
		}
	}
}

// TestReasonsAreAnswered: every reason has an answer that says it.
func TestReasonsAreAnswered(t *testing.T) {
	for _, reason := range rules.Reasons() {
		l := newLab(t)
		l.inject = func(context.Context, gate.Pass, *http.Request) error {
			return &gate.DeniedError{Reason: reason, ID: "x"}
		}
		resp, err := ways()[2].client(l).Get("http://any.test/")
		must(t, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode < 400 || resp.Header.Get("Sallyport-Reason") != string(reason) || !strings.Contains(string(body), string(reason)) {
			t.Errorf("%s: %d %s", reason, resp.StatusCode, body)
		}
		_ = l.stop()
	}
}
