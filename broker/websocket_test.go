package broker_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// TestWebSocketMessagesAreScrubbed: as long frames keep their lengths, the
// stream stays one; compression is not agreed on.
func TestWebSocketMessagesAreScrubbed(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	o := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.CloseNow() }()
		for {
			kind, msg, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, []byte(string(msg)+" to "+r.Header.Get("Authorization")+strings.Repeat(" and so on", 100)+" sk_test_4")); err != nil {
				return
			}
		}
	}))
	t.Cleanup(o.Close)
	front := gateway(t, k.client, o)
	c, resp, err := websocket.Dial(t.Context(), front.URL+"/v1/socket", &websocket.DialOptions{
		Host:       "api.test",
		HTTPHeader: http.Header{"Authorization": {"Bearer " + ph}}, CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.CloseNow() }()
	if ext := resp.Header.Get("Sec-WebSocket-Extensions"); ext != "" {
		t.Errorf("extensions %q were agreed on", ext)
	}
	for _, word := range []string{"one", "two", "three"} {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(word)); err != nil {
			t.Fatal(err)
		}
		_, msg, err := c.Read(t.Context()) // ends in what could begin the secret: must not wait for more
		if err != nil {
			t.Fatal(err)
		}
		if want := word + " to Bearer " + ph + " and"; !strings.HasPrefix(string(msg), want) || strings.Contains(string(msg), realToken[8:]) {
			t.Errorf("got %q, want %q…", msg, want)
		}
	}
}

// TestFirstMessageAtAnOrigin (ADR-0035): a server that wants the key in the first
// message, and a client that offers compression. What it echoes is scrubbed.
func TestFirstMessageAtAnOrigin(t *testing.T) {
	k := newKit(t)
	k.stop()
	k.creds[0].Scheme = policyfile.Scheme{Type: policyfile.Body, Body: []policyfile.Field{{Kind: "websocket", Name: "key"}}}
	k.start()
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	o := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.CloseNow() }()
		var hello struct{ Key string }
		if err := wsjson.Read(r.Context(), c, &hello); err != nil || hello.Key != realToken {
			_ = c.Close(websocket.StatusPolicyViolation, "no key")
			return
		}
		_ = c.Write(r.Context(), websocket.MessageText, []byte("welcome "+hello.Key))
		_, _, _ = c.Read(r.Context())
	}))
	t.Cleanup(o.Close)
	front := gateway(t, k.client, o)
	for _, tt := range []struct {
		name, key, want string
		status          websocket.StatusCode
	}{
		{"nothing", "", "", websocket.StatusPolicyViolation},
		{"the placeholder", ph, "welcome " + ph, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _, err := websocket.Dial(t.Context(), front.URL+"/v1/socket", &websocket.DialOptions{
				Host: "api.test", CompressionMode: websocket.CompressionContextTakeover,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.CloseNow() }()
			if err := wsjson.Write(t.Context(), c, map[string]string{"key": tt.key}); err != nil {
				t.Fatal(err)
			}
			_, msg, err := c.Read(t.Context())
			if string(msg) != tt.want || tt.status != 0 && websocket.CloseStatus(err) != tt.status {
				t.Errorf("got %q, %v, want %q", msg, err, tt.want)
			}
		})
	}
}

// TestKeyInWebSocketProtocol: a key as the name of a protocol is a header like others,
// of which nothing of the sandbox's is left.
func TestKeyInWebSocketProtocol(t *testing.T) {
	k := newKit(t)
	k.stop()
	k.creds[0].Scheme = policyfile.Scheme{Type: policyfile.Header, Header: "Sec-Websocket-Protocol", Prefix: "api-key."}
	k.start()
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	for _, tt := range []struct {
		protocol string
		want     rules.CarryState
	}{
		{"realtime, api-key." + ph, rules.Leaked},
		{"realtime, " + ph, rules.Leaked},
		{ph, rules.Bound},
	} {
		r := request("GET", "https://api.test/v1/socket", "Upgrade", "websocket", "Connection", "Upgrade", "Sec-Websocket-Protocol", tt.protocol)
		if got := k.client.Find("cell1", r); len(got) == 0 || got[0].State != tt.want {
			t.Errorf("%q carries %v, want %v", tt.protocol, got, tt.want)
		}
		if tt.want != rules.Bound {
			continue
		}
		if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
			t.Fatal(err)
		}
		if got := r.Header["Sec-Websocket-Protocol"]; len(got) != 1 || got[0] != "api-key."+realToken {
			t.Errorf("the origin is sent %q", got)
		}
	}
}
