package broker_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
)

// BenchmarkCompressedBody is what a body costs that is searched for what it says: octets
// of what is said, for a second of the processor's.
func BenchmarkCompressedBody(b *testing.B) {
	k := newKit(b)
	k.grant("cell1", "run1", "api")
	var text strings.Builder
	for r := rand.New(rand.NewPCG(1, 2)); text.Len() < 8<<20; { // a fifth is left when it is compressed
		fmt.Fprintf(&text, `{"id":"evt_%016x","object":"event","created":%d,"data":{"amount":%d,"note":"say \"aye\""}},`+"\n", r.Uint64(), 1724500000+r.IntN(1e6), r.IntN(1e5))
	}
	said := text.String()
	bodies := []struct{ name, field, coding, body string }{
		{"as it is", "Content-Encoding", "identity", said},
		{"gzip", "Content-Encoding", "gzip", pack(b, "gzip", said)},
		{"deflate", "Content-Encoding", "deflate", pack(b, "deflate", said)},
		{"br", "Content-Encoding", "br", pack(b, "br", said)},
		{"zstd", "Content-Encoding", "zstd", pack(b, "zstd", said)},
		{"messages of 64 KiB, gzip", "Grpc-Encoding", "gzip", messagesOf(b, said, 64<<10)},
		{"messages of 1 KiB, gzip", "Grpc-Encoding", "gzip", messagesOf(b, said[:1<<20], 1<<10)},
	}
	for _, bb := range bodies {
		octets := len(said)
		if strings.Contains(bb.name, " 1 KiB") {
			octets = 1 << 20
		}
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				r := request("POST", "https://ok.test/upload", bb.field, bb.coding)
				r.Body = io.NopCloser(strings.NewReader(bb.body))
				if err := k.client.Inject(b.Context(), pass(b, "cell1", "run1", r), r); err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, 32<<10)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(octets)*float64(b.N)/1e6/(processorTime(b)-before), "MB/cpu-s")
			b.ReportMetric(float64(octets)/float64(len(bb.body)), "smaller")
		})
	}
}

func messagesOf(b *testing.B, text string, size int) string {
	var out strings.Builder
	for at := 0; at < len(text); at += size {
		out.WriteString(framed(1, pack(b, "gzip", text[at:min(at+size, len(text))])))
	}
	return out.String()
}

// processorTime returns the seconds of processor time that the process has taken.
func processorTime(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
