package broker_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// frame is a WebSocket frame as a client sends it (RFC 6455 section 5.2).
func frame(first byte, payload string, mask [4]byte) []byte {
	out := []byte{first}
	switch n := len(payload); {
	case n < 126:
		out = append(out, 0x80|byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 0x80|126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 0x80|127), uint64(n))
	}
	out = append(out, mask[:]...)
	for i := range len(payload) {
		out = append(out, payload[i]^mask[i&3])
	}
	return out
}

// upgraded is a connection that was upgraded; what is written to it is kept.
type upgraded struct {
	io.Reader
	sent bytes.Buffer
}

func (u *upgraded) Write(p []byte) (int, error) { return u.sent.Write(p) }
func (*upgraded) Close() error                  { return nil }

// openSocket upgrades a request of cell1 and returns the way to the origin.
func openSocket(tb testing.TB, k *kit, url string) (io.Writer, *upgraded) {
	tb.Helper()
	r := request("GET", url, "Upgrade", "websocket", "Connection", "Upgrade", "Sec-Websocket-Extensions", "permessage-deflate")
	p := pass(tb, "cell1", "run1", r)
	if err := k.client.Inject(tb.Context(), p, r); err != nil {
		tb.Fatal(err)
	}
	if got := r.Header["Sec-Websocket-Extensions"]; got != nil {
		tb.Errorf("the origin is offered %q", got)
	}
	u := &upgraded{Reader: strings.NewReader("")}
	resp := &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: http.Header{"Upgrade": {"websocket"}}, Body: u}
	if err := k.client.Scrub(p, resp); err != nil {
		tb.Fatal(err)
	}
	w, ok := resp.Body.(io.Writer)
	if !ok {
		tb.Fatal("the upgraded connection cannot be written to")
	}
	return w, u
}

// TestPlaceholderInWebSocket: a leak in a message is refused, however it is masked,
// cut into frames or encoded, with and without a credential on the host.
func TestPlaceholderInWebSocket(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api", "key").Grants[0].Placeholder
	mask := [4]byte{0x12, 0x34, 0x56, 0x78}
	long := strings.Repeat("text ", 20_000)
	tests := []struct {
		name string
		sent [][]byte
		leak bool
	}{
		{"text", [][]byte{frame(0x81, `{"k":"`+ph+`"}`, mask)}, true},
		{"binary", [][]byte{frame(0x82, ph, mask)}, true},
		{"without a mask's effect", [][]byte{frame(0x81, ph, [4]byte{})}, true},
		{"two frames of a message", [][]byte{frame(0x01, "a"+ph[:9], mask), frame(0x80, ph[9:], [4]byte{9, 8, 7, 6})}, true},
		{"with a ping between them", [][]byte{frame(0x01, ph[:9], mask), frame(0x89, "ping", mask), frame(0x80, ph[9:], mask)}, true},
		{"in a ping", [][]byte{frame(0x89, ph, mask)}, true},
		{"after much", [][]byte{frame(0x82, long+ph, mask)}, true},
		{"after another message", [][]byte{frame(0x81, "hello", mask), frame(0x81, ph, mask)}, true},
		{"an extension nobody agreed on", [][]byte{frame(0xc1, "x", mask)}, true},
		{"twin, text", [][]byte{frame(0x81, `{"k":"`+ph[:len(ph)-1]+`"}`, mask)}, false},
		{"twin, parts of two messages", [][]byte{frame(0x81, ph[:9], mask), frame(0x81, ph[9:], mask)}, false},
		{"twin, large", [][]byte{frame(0x82, long, mask), frame(0x88, "", mask)}, false},
	}
	for _, url := range []string{"https://ok.test/socket", "https://api.test/v1/socket"} {
		for _, tt := range tests {
			t.Run(tt.name+" "+url, func(t *testing.T) {
				w, u := openSocket(t, k, url)
				all := bytes.Join(tt.sent, nil)
				var err error
				for rest := all; len(rest) > 0 && err == nil; { // in pieces that fit no frame
					n := min(len(rest), 7)
					_, err = w.Write(rest[:n])
					rest = rest[n:]
				}
				if !tt.leak {
					if err != nil || !bytes.Equal(u.sent.Bytes(), all) {
						t.Errorf("%v, %d of %d octets sent", err, u.sent.Len(), len(all))
					}
					return
				}
				want := rules.PlaceholderLeak
				if strings.HasPrefix(tt.name, "an extension") {
					want = rules.BadRequest
				}
				wantDenied(t, err, want)
				if u.sent.Len() >= len(all) {
					t.Error("all of it was sent")
				}
				if _, again := w.Write([]byte{0x81, 0x80, 0, 0, 0, 0}); again == nil || !errors.Is(err, again) && !errors.Is(again, err) {
					wantDenied(t, again, want)
				}
			})
		}
	}
}

// TestRefusedMessageClosesTheSocket: the client is told by a close frame, status 1008,
// where a frame of upstream's is not under way.
func TestRefusedMessageClosesTheSocket(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	for _, tt := range []struct {
		name, before, message string
		told                  bool
	}{
		{"between frames", "\x81\x02hi", ph, true},
		{"inside of a frame", "\x81\x09hi", ph, false},
		{"twin, nothing is refused", "\x81\x02hi", "hello", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, u := openSocket(t, k, "https://ok.test/socket")
			u.Reader = strings.NewReader(tt.before)
			_, err := w.Write(frame(0x81, tt.message, [4]byte{1, 2, 3, 4}))
			if (err != nil) != (tt.message == ph) {
				t.Fatal(err)
			}
			r, ok := w.(io.Reader)
			if !ok {
				t.Fatal("it cannot be read")
			}
			got, err := io.ReadAll(r)
			rest, ok := strings.CutPrefix(string(got), tt.before)
			if !ok || err != nil {
				t.Fatalf("read %q, %v", got, err)
			}
			told := len(rest) > 4 && rest[0] == 0x88 && int(rest[1]) == len(rest)-2 && rest[2:4] == "\x03\xf0" && strings.HasPrefix(rest[4:], "placeholder_leak [request ")
			if told != tt.told || !tt.told && rest != "" {
				t.Errorf("then %q, want a close frame %v", rest, tt.told)
			}
		})
	}
}

func TestFramesCutAnywhere(t *testing.T) {
	k := newKit(t)
	ph := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	rapid.Check(t, func(rt *rapid.T) {
		leak := rapid.Bool().Draw(rt, "leak")
		value := ph
		if !leak {
			value = ph[:len(ph)-1]
		}
		text := rapid.StringMatching(`[a-z ]{0,300}`).Draw(rt, "before") + value + rapid.StringMatching(`[ ][a-z ]{0,300}`).Draw(rt, "after")
		var all []byte
		for first, rest := byte(0x01), text; rest != "" || first == 0x01; first = 0x00 {
			n := min(len(rest), rapid.IntRange(0, 200).Draw(rt, "frame")+1)
			fin := byte(0)
			if n == len(rest) {
				fin = 0x80
			}
			all = append(all, frame(first|fin, rest[:n], [4]byte{1, byte(n), 3, 200})...)
			rest = rest[n:]
		}
		w, u := openSocket(t, k, "https://ok.test/socket")
		var err error
		for rest := all; len(rest) > 0 && err == nil; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "cut")
			_, err = w.Write(rest[:n])
			rest = rest[n:]
		}
		if leak != (err != nil) || !leak && !bytes.Equal(u.sent.Bytes(), all) {
			rt.Fatalf("leak %v: %v, %d of %d octets", leak, err, u.sent.Len(), len(all))
		}
	})
}

// TestFirstMessageIsFilled (ADR-0035): a credential goes into declared fields of the
// first message, whatever frames it came in, and nowhere else.
func TestFirstMessageIsFilled(t *testing.T) {
	k := newKit(t)
	k.stop()
	writeSecret(t, k.secret("key"), bodySecret)
	k.creds[1].Scheme = policyfile.Scheme{Type: policyfile.Body, Body: []policyfile.Field{{Kind: "websocket", Name: "auth.token"}}}
	k.start()
	ph := k.grant("cell1", "run1", "key", "api").Grants[0].Placeholder
	mask := [4]byte{0x12, 0x34, 0x56, 0x78}
	quoted, _ := json.Marshal(bodySecret)
	hello := `{"type":"hello","auth":{"token":"` + ph + `"}}`
	filled := `{"type":"hello","auth":{"token":` + strings.ReplaceAll(string(quoted), `\u0026`, "&") + `}}`
	other := frame(0x81, `{"auth":"none"}`, mask)
	leak, own, bad := rules.PlaceholderLeak, rules.ForeignCredential, rules.BadRequest
	tests := []struct {
		name string
		sent []byte
		want string // of the first message
		deny rules.Reason
	}{
		{"in another field", frame(0x81, `{"token":"`+ph+`"}`, mask), "", leak},
		{"a part of the field", frame(0x81, strings.Replace(hello, ph, "x"+ph, 1), mask), "", own},
		{"a key of the caller's own", frame(0x81, strings.Replace(hello, ph, "xoxb-somebody-elses", 1), mask), "", own},
		{"in the field and beside it", frame(0x81, strings.Replace(hello, "hello", ph, 1), mask), "", leak},
		{"in a binary message", frame(0x82, hello, mask), "", leak},
		{"in the second message", append(bytes.Clone(other), frame(0x81, hello, mask)...), "", leak},
		{"in a message that is too long", frame(0x81, hello+strings.Repeat(" ", 64<<10), mask), "", leak},
		{"in a ping before it", append(frame(0x89, ph, mask), frame(0x81, hello, mask)...), "", leak},
		{"of an extension", frame(0xc1, hello, mask), "", bad},
		{"in a continuation of nothing", frame(0x80, hello, mask), "", leak},
		{"not UTF-8", frame(0x81, "{\"a\":\"\xff\"}", mask), "", bad},
		{"twin", frame(0x81, hello, mask), filled, ""},
		{"twin, in frames", slices.Concat(frame(0x01, hello[:9], mask), frame(0x00, hello[9:40], [4]byte{}), frame(0x00, "", mask), frame(0x80, hello[40:], mask)), filled, ""},
		{"twin, a ping between them", slices.Concat(frame(0x01, hello[:50], mask), frame(0x89, "ping", mask), frame(0x80, hello[50:], mask)), filled, ""},
		{"twin, long", frame(0x81, hello+strings.Repeat(" ", 60<<10), mask), filled, ""},
		{"twin, no placeholder", other, `{"auth":"none"}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w, u := openSocket(t, k, "https://key.test/socket")
			var err error
			for rest := append(bytes.Clone(tt.sent), other...); len(rest) > 0 && err == nil; {
				n := min(len(rest), 7)
				_, err = w.Write(rest[:n])
				rest = rest[n:]
			}
			sent := serverReads(t, u.sent.Bytes())
			if tt.deny != "" {
				denied, ok := errors.AsType[*gate.DeniedError](err)
				if !ok || denied.Reason != tt.deny {
					t.Errorf("%v, want reason %s", err, tt.deny)
				}
				if strings.Contains(fmt.Sprint(sent), "real") || strings.Contains(fmt.Sprint(sent), ph) {
					t.Errorf("%q was sent", sent)
				}
				return
			}
			if err != nil || len(sent) != 2 || strings.TrimRight(sent[0], " ") != tt.want || sent[1] != `{"auth":"none"}` {
				t.Errorf("%v, %.200q was sent, want %q and another", err, sent, tt.want)
			}
		})
	}
}

// serverReads returns the messages that a server would read, those of control frames
// left out.
func serverReads(tb testing.TB, raw []byte) (messages []string) {
	tb.Helper()
	for text := ""; len(raw) >= 6; {
		first, n, head := raw[0], uint64(raw[1]&0x7f), 2
		switch n {
		case 126:
			n, head = uint64(binary.BigEndian.Uint16(raw[2:])), 4
		case 127:
			n, head = binary.BigEndian.Uint64(raw[2:]), 10
		}
		if raw[1]&0x80 == 0 {
			tb.Fatal("a frame without a mask")
		}
		mask := raw[head : head+4]
		if uint64(len(raw)) < uint64(head+4)+n {
			return messages
		}
		payload := bytes.Clone(raw[head+4:][:n])
		for i := range payload {
			payload[i] ^= mask[i&3]
		}
		raw = raw[uint64(head+4)+n:]
		if first&0x08 != 0 {
			continue
		}
		if text += string(payload); first&0x80 != 0 {
			messages, text = append(messages, text), ""
		}
	}
	return messages
}
