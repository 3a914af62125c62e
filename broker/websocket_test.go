package broker_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
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
