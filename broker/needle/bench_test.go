package needle_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"html"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"sallyport/broker/needle"
)

// What a text costs, in time of the processor: a hostile one may take more of it than
// a common one, and has to be searched as well.
func BenchmarkKinds(b *testing.B) {
	s := setOf(value, "ghp_16C7e42F292c6912E7710c838347Ae178B4a")
	prose := "The gateway reads a request, asks the policy, and writes a record before anything goes out; what is refused says why.\n"
	object := `{"id":"evt_1NqT","object":"event","created":1724500000,"data":{"amount":1099,"note":"say \"aye\"","url":"https:\/\/h.test\/a"}},` + "\n"
	page := `<li class="item" data-id="42"><a href="/things?page=2&amp;size=10">Things &amp; more &#39;n such</a></li>` + "\n"
	quoted, _ := json.Marshal(strings.Repeat(object, 8))
	half := value[:len(value)/2]
	for _, k := range []struct{ name, text string }{
		{"prose", prose},
		{"JSON", object},
		{"HTML", page},
		{"JSON in JSON", string(quoted)},
		{"HTML in HTML", html.EscapeString(page)},
		{"random", random()},
		{"all octets", allOctets()},
		{"base64", strings.Repeat("Zm9vYmFyYmF6cXV4", 5) + "\r\n"},
		{"dense %73", "%73"},
		{"dense backslashes", `\\`},
		{"dense &#115;", "&#115;"},
		{`dense \u0073`, `\u0073`},
		{`dense \x73`, `\x73`},
		{"dense %2573", "%2573"},
		{`dense \\u0073`, `\\u0073`},
		{"dense =73", "=73"},
		{"dense lines", "\r\n"},
		{"dense &amp;", "&amp;"},
		{"dense &", "&"},
		{"dense %", "%"},
		{"dense =3D73", "=3D73"},
		{`dense \s`, `\s`},
		{`dense \163`, `\163`},
		{"dense &lowbar;", "&lowbar;"},
		{"half of it, in %", each(half, "%%%02x")},
		{"half of it, in &#", each(half, "&#%d;")},
		{`half of it, in \u`, each(half, `\u%04x`)},
		{"half of it, twice", each(each(half, "%%%02x"), "%%%02x")},
		{"half of it, first escaped", "%" + hex.EncodeToString([]byte(half[:1])) + half[1:]},
	} {
		text := bytes.Repeat([]byte(k.text), 1<<16/len(k.text))
		b.Run(k.name, func(b *testing.B) {
			before, octets := cpu(b), 0
			for b.Loop() {
				if _, ok := needle.Next(s, text, 0); ok {
					b.Fatal("found")
				}
				octets += len(text)
			}
			b.ReportMetric(float64(octets)/1e6/(cpu(b)-before), "MB/cpu-s")
		})
	}
}

// random is as what is compressed.
func random() string {
	text, r := make([]byte, 1<<16), rand.New(rand.NewPCG(1, 2))
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	return string(text)
}

// allOctets is what test/bench sends.
func allOctets() string {
	text := make([]byte, 1<<16)
	for i := range text {
		text[i] = byte(i*7 + i>>8)
	}
	return string(text)
}

// cpu returns the seconds of processor time that the process has taken.
func cpu(b *testing.B) float64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
