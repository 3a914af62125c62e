package scrub_test

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"sallyport/broker/scrub"
)

// frame is a WebSocket frame as a server sends it (RFC 6455 section 5.2).
func frame(first byte, payload string) string {
	out := []byte{first}
	switch n := len(payload); {
	case n < 126:
		out = append(out, byte(n))
	case n < 1<<16:
		out = binary.BigEndian.AppendUint16(append(out, 126), uint16(n))
	default:
		out = binary.BigEndian.AppendUint64(append(out, 127), uint64(n))
	}
	return string(out) + payload
}

// half is upstream's half of a connection.
type half struct{ io.ReadCloser }

func (half) Write(p []byte) (int, error) { return len(p), nil }

// TestSecretsCutOverFrames: over frames and messages, with others between them, and
// however the connection is read. Frames stay what they are.
func TestSecretsCutOverFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := []string{"a", "say ", secret, secret[:9], "%" + "34", secret[9:], strings.Repeat("long ", 60), "\n"}
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(words), 1, 12).Draw(t, "words"), "")
		clean := scrubber().Text(text)
		var in, want strings.Builder
		for at, first := 0, byte(0x01); at < len(text); {
			if rapid.IntRange(0, 3).Draw(t, "ping") == 0 {
				in.WriteString(frame(0x89, secret))
				want.WriteString(frame(0x89, instead))
			}
			n := rapid.IntRange(0, min(len(text)-at, 200)).Draw(t, "frame")
			fin := rapid.SampledFrom([]byte{0, 0x80}).Draw(t, "last of its message")
			in.WriteString(frame(first|fin, text[at:at+n]))
			want.WriteString(frame(first|fin, clean[at:at+n]))
			at, first = at+n, fin>>7
		}
		src := &pieces{err: io.EOF}
		for rest := in.String(); rest != ""; {
			n := rapid.IntRange(1, min(len(rest), 60)).Draw(t, "cut")
			src.parts, rest = append(src.parts, rest[:n]), rest[n:]
		}
		got, err := io.ReadAll(scrub.NewFrames(scrubber(), half{src}))
		if err != nil || string(got) != want.String() {
			t.Fatalf("%v\n%q became\n%q, want\n%q", err, in.String(), got, want.String())
		}
	})
}

// TestFramesThatHideWhatIsInThem end the connection, whatever was told of it before.
func TestFramesThatHideWhatIsInThem(t *testing.T) {
	before := frame(0x81, "hello")
	tests := []struct{ name, frame, want string }{
		{"masked", "\x81\x85\x01\x02\x03\x04abcde", "masked"},
		{"compressed", frame(0xc1, "x"), "extension"},
		{"another extension", frame(0xa2, "x"), "extension"},
		{"a control frame that is none", "\x89\x7e\x00\x80" + strings.Repeat("x", 128), "too long"},
		{"twin", frame(0x82, "x"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := io.ReadAll(scrub.NewFrames(scrubber(), half{io.NopCloser(strings.NewReader(before + tt.frame))}))
			if !strings.HasPrefix(string(got), before) || strings.Contains(string(got), "abcde") {
				t.Errorf("read %q", got)
			}
			if tt.want == "" && (err != nil || string(got) != before+tt.frame) ||
				tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("read %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// TestFramesAreReadWhole: what came together is handed out together, since each Read
// becomes a write to the sandbox.
func TestFramesAreReadWhole(t *testing.T) {
	whole := frame(0x81, "hello\n") + frame(0x89, "") + frame(0x82, "") + frame(0x81, "again\n")
	f := scrub.NewFrames(scrubber(), half{&pieces{parts: []string{whole}, err: io.EOF}})
	buf := make([]byte, 1<<10)
	if n, err := f.Read(buf); err != nil || string(buf[:n]) != whole {
		t.Errorf("Read = %q, %v, want %q", buf[:n], err, whole)
	}
}

// TestPingsAreNotHeldUp: a frame without a payload comes at once, and one behind what
// may begin a secret soon.
func TestPingsAreNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn()
		f := scrub.NewFrames(scrubber(), half{c})
		for _, tt := range []struct {
			send string
			wait time.Duration
		}{
			{frame(0x89, ""), 0},
			{frame(0x81, "hello"), 0},
			{frame(0x81, "say sk_test_4e") + frame(0x89, "now"), 100 * time.Millisecond},
		} {
			start := time.Now()
			go func() { c.in <- tt.send }()
			got := make([]byte, len(tt.send))
			if _, err := io.ReadFull(f, got); err != nil || string(got) != tt.send || time.Since(start) != tt.wait {
				t.Fatalf("read %q, %v after %v, want %q after %v", got, err, time.Since(start), tt.send, tt.wait)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte(frame(0x01, secret[:9])+frame(0x89, "p")+frame(0x80, secret[9:])), uint8(3))
	f.Add([]byte(frame(0x81, strings.Repeat("x", 70_000))), uint8(40))
	f.Fuzz(func(t *testing.T, raw []byte, cut uint8) {
		read := func(n int) (string, error) {
			src := &pieces{err: io.EOF}
			for rest := string(raw); rest != ""; {
				k := min(n, len(rest))
				src.parts, rest = append(src.parts, rest[:k]), rest[k:]
			}
			b, err := io.ReadAll(scrub.NewFrames(scrubber(), half{src}))
			return string(b), err
		}
		whole, err1 := read(len(raw) + 1)
		parts, err2 := read(int(cut)%50 + 1)
		if whole != parts || (err1 == nil) != (err2 == nil) || len(whole) > len(raw) {
			t.Fatalf("in pieces %q, %v, whole %q, %v", parts, err2, whole, err1)
		}
	})
}
