package broker_test

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/target"
)

// TestPlaceholderInAName: of the run's own and of another's, in what labels can hold.
func TestPlaceholderInAName(t *testing.T) {
	k := newKit(t)
	own := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	other := k.grant("cell2", "run2", "git").Grants[0].Placeholder
	k.client.Attach(control.CellFile{Cell: "cell3", Run: "run3", Policy: "p"})
	leak := func(name string) []rules.Carry {
		return []rules.Carry{{Credential: name, State: rules.LeakedInHost}}
	}
	cut := func(s string, n int) string { return s[:n] + "." + s[n:] }
	short := func(s string) string { // the next label must not go on as s does
		next := "a"
		if strings.HasSuffix(strings.ToLower(s), next) {
			next = "b"
		}
		return s[:len(s)-1] + "." + next + ".test"
	}
	tests := []struct {
		name, cell, host string
		want             []rules.Carry
	}{
		{"plain", "cell1", own + ".a.test", leak("api")},
		{"over labels", "cell1", cut(own, 11) + ".a.test", leak("api")},
		{"base32", "cell1", strings.Trim(base32.StdEncoding.EncodeToString([]byte(own)), "=") + ".a.test", leak("api")},
		{"base64url", "cell1", base64.RawURLEncoding.EncodeToString([]byte("u:"+own)) + ".a.test", leak("api")},
		{"hexadecimal", "cell1", cut(hex.EncodeToString([]byte(own)), 30) + ".a.test", leak("api")},
		{"of another run", "cell1", "x." + other + ".a.test", leak("git")},
		{"of another run, over labels", "cell1", cut(other, 20) + ".a.test", leak("git")},
		{"of another run, in a cell without grants", "cell3", other + ".a.test", leak("git")},
		{"both", "cell1", cut(own, 9) + "." + other + ".a.test", append(leak("api"), leak("git")...)},
		{"of its own run, twin", "cell2", other + ".a.test", leak("git")},
		{"cut off", "cell1", short(own), nil},
		{"of another run, cut off", "cell1", short(other), nil},
		{"base32, cut off", "cell1", base32.StdEncoding.EncodeToString([]byte(own))[:30] + ".a.test", nil},
		{"nothing", "cell1", strings.Repeat("label.", 30) + "a.test", nil},
	}
	for _, tt := range tests {
		name, err := target.ParseName(tt.host)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(tt.want, k.client.FindName(tt.cell, name)); d != "" {
			t.Errorf("%s: FindName(%s) (-want +got):\n%s", tt.name, name, d)
		}
		r := request("GET", "https://"+name.String()+"/")
		r.RequestURI = "/" // as of a client that knows no proxy
		if d := cmp.Diff(tt.want, k.client.Find(tt.cell, r)); d != "" {
			t.Errorf("%s: Find(%s) (-want +got):\n%s", tt.name, name, d)
		}
	}
}

func TestFindNameDoesNotAllocate(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	k.grant("cell2", "run2", "git")
	name, err := target.ParseName("a-service-of-ours-0123456789.eu-west-1.example.test")
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(200, func() {
		if k.client.FindName("cell1", name) != nil {
			t.Error("found something")
		}
	}); n != 0 {
		t.Errorf("%v allocations a name, want 0", n)
	}
}

func BenchmarkFindName(b *testing.B) {
	k := newKit(b)
	k.grant("cell1", "run1", "api")
	k.grant("cell2", "run2", "git")
	name, err := target.ParseName("a-service-of-ours-0123456789.eu-west-1.example.test")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		k.client.FindName("cell1", name)
	}
}
