package broker_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/broker"
	"sallyport/broker/needle"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

func TestNewServerReportsEveryFault(t *testing.T) {
	good := policyfile.Endpoint{Host: host("api.test"), Ports: []uint16{443}}
	tests := []struct {
		name string
		cred policyfile.Credential
		want []string
	}{
		{
			"everything at once",
			policyfile.Credential{Name: "A b", Where: "c.yaml:3", Env: "1X"},
			[]string{`c.yaml:3: credential "A b"`, "lower-case", `placeholder env "1X"`, "is not one of", "needs a source", "has no endpoints"},
		},
		{"CR-21 no host", policyfile.Credential{Name: "a", Scheme: policyfile.Scheme{Type: "bearer"}, Source: policyfile.Source{File: "/x"}, Endpoints: []policyfile.Endpoint{{}}}, []string{"endpoint 1 has no host"}},
		{"method in lower case", policyfile.Credential{
			Name: "a", Scheme: policyfile.Scheme{Type: "bearer"}, Source: policyfile.Source{File: "/x"},
			Endpoints: []policyfile.Endpoint{{Host: host("api.test"), Ports: []uint16{443}, Methods: []string{"get"}}},
		}, []string{"upper case"}},
		{"port 0", policyfile.Credential{
			Name: "a", Scheme: policyfile.Scheme{Type: "bearer"}, Source: policyfile.Source{File: "/x"},
			Endpoints: []policyfile.Endpoint{{Host: host("api.test"), Ports: []uint16{0}}},
		}, []string{"not a port"}},
	}
	cfg := func(c ...policyfile.Credential) broker.Config {
		return broker.Config{Credentials: c, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := broker.NewServer(cfg(tt.cred))
			for _, w := range tt.want {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("NewServer = %v, want it to say %q", err, w)
				}
			}
		})
	}
	ok := policyfile.Credential{Name: "a", Scheme: policyfile.Scheme{Type: "bearer"}, Source: policyfile.Source{File: "/nonexistent"}, Endpoints: []policyfile.Endpoint{good}}
	if _, err := broker.NewServer(cfg(ok, ok)); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("two of one name: %v", err)
	}
	if _, err := broker.NewServer(cfg(ok)); err != nil {
		t.Errorf("twin, whose secret is not there yet: %v", err)
	}
	if _, err := broker.NewServer(broker.Config{}); err == nil {
		t.Error("a server without clock and log")
	}
	// CR-19: no credential, nothing to do.
	if _, err := broker.NewServer(cfg()); err != nil {
		t.Error(err)
	}
}

func TestGrantRefuses(t *testing.T) {
	k := newKit(t)
	k.grant("taken", "run0", "api")
	writeSecret(t, k.secret("key"), "has\na line break")
	many := make([]string, 33)
	tests := []struct {
		name   string
		in     broker.GrantRequest
		reason rules.Reason
		want   string
	}{
		{"no cell", broker.GrantRequest{Run: "r", Credentials: []string{"api"}}, rules.BadRequest, "required"},
		{"no run", broker.GrantRequest{Cell: "c", Credentials: []string{"api"}}, rules.BadRequest, "required"},
		{"many", broker.GrantRequest{Cell: "c", Run: "r", Credentials: many}, rules.BadRequest, "32"},
		{"unknown", broker.GrantRequest{Cell: "c", Run: "r", Credentials: []string{"api", "nope"}}, rules.CredentialUnavail, "no such credential"},
		{"CR-12 unusable, run does not start blind", broker.GrantRequest{Cell: "c", Run: "r", Credentials: []string{"api", "key"}}, rules.CredentialUnavail, "line break at octet 4"},
		{"a cell that has a run", broker.GrantRequest{Cell: "taken", Run: "r", Credentials: []string{"api"}}, "", "revoke it first"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out broker.Grants
			err := k.admin.Call(t.Context(), "/v1/grants", tt.in, &out)
			var refusal *control.Error
			if !errors.As(err, &refusal) || refusal.Reason != string(tt.reason) || !strings.Contains(refusal.Text, tt.want) || out.Grants != nil {
				t.Errorf("grants = %v, %v, want %q with %q", out, err, tt.reason, tt.want)
			}
		})
	}
	// Nothing was granted by halves.
	var out broker.Grants
	if err := k.admin.Call(t.Context(), "/v1/grants", broker.GrantRequest{Cell: "c", Run: "r", Credentials: []string{"api", "api"}}, &out); err != nil || len(out.Grants) != 1 {
		t.Fatalf("twin: %v, %v", out, err)
	}
	g := out.Grants[0]
	want := control.Grant{Credential: "api", Env: "API_KEY", Placeholder: g.Placeholder, Place: control.Place{Type: "bearer", Header: "Authorization"}}
	if d := cmp.Diff(want, g); d != "" {
		t.Errorf("grant (-want +got):\n%s", d)
	}
}

func TestPlaceholderShapes(t *testing.T) {
	k := newKit(t)
	tests := []struct{ secret, shape string }{
		{"sk_test_4eC39HqLyjWDarjtT1zdp7dc", `^sk_test_[0-9A-Za-z]{24}$`},
		{"sk-ant-api03-" + strings.Repeat("aB3_-", 18) + "AA", `^sk-ant-api03-[0-9A-Za-z]{92}$`},
		{"ghp_16C7e42F292c6912E7710c838347Ae178B4a", `^ghp_[0-9A-Za-z]{36}$`},
		{"xoxb-123456789012-1234567890123-abcdefghijklmnopqrstuvwx", `^xoxb-[0-9]{12}-[0-9]{13}-[a-z]{24}$`},
		{"0123456789abcdef0123456789abcdef", `^[0-9a-f]{32}$`},
		{"0123456789ABCDEF0123456789ABCDEF", `^[0-9A-F]{32}$`},
		{"01234567890123456789", `^[0-9]{20}$`},
		{"f81d4fae-7dec-11d0-a765-00a0c91e6bf6", `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`},
		{"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlc2lnbmF0dXJl", `^eyJ[0-9A-Za-z]+\.eyJ[0-9A-Za-z]+\.[0-9A-Za-z]{24}$`},
		{`p@ss "word", with blanks`, `^[a-z]{24}$`},
	}
	seen := map[string]bool{}
	for _, tt := range tests {
		writeSecret(t, k.secret("api"), tt.secret)
		for range 20 {
			f := k.grant("c", "r", "api")
			k.revoke("c")
			ph := f.Grants[0].Placeholder
			if !regexp.MustCompile(tt.shape).MatchString(ph) {
				t.Errorf("secret %q: placeholder %q, want %s", tt.secret, ph, tt.shape)
			}
			if seen[ph] || ph == tt.secret || strings.Contains(ph, tt.secret) {
				t.Errorf("placeholder %q was there before", ph)
			}
			seen[ph] = true
		}
	}
}

// TestPlaceholderTellsNothing: beyond the known prefix a placeholder is drawn
// evenly, whatever the secret is.
func TestPlaceholderTellsNothing(t *testing.T) {
	k := newKit(t)
	writeSecret(t, k.secret("api"), "sk_test_ZZZZZZZZZZZZZZZZZZZZZZa1")
	counts := map[byte]int{}
	const runs = 300
	for range runs {
		ph := k.grant("c", "r", "api").Grants[0].Placeholder
		k.revoke("c")
		for i := len("sk_test_"); i < len(ph); i++ {
			counts[ph[i]]++
		}
	}
	mean := float64(runs*24) / 62
	for c, n := range counts {
		if float64(n) < mean/2 || float64(n) > mean*1.7 {
			t.Errorf("%q came %d times, want about %.0f", c, n, mean)
		}
	}
	if len(counts) != 62 {
		t.Errorf("%d characters came, want 62", len(counts))
	}
}

// TestRestartKeepsWhatStillFits: JW-07 and CR-18.
func TestRestartKeepsWhatStillFits(t *testing.T) {
	k := newKit(t)
	f := k.grant("cell1", "run1", "api", "key")
	if err := f.Write(k.cells, 0); err != nil {
		t.Fatal(err)
	}
	odd := f
	odd.Cell = "cell2"
	odd.Grants = []control.Grant{
		{Credential: "gone", Placeholder: strings.Repeat("x", 30), Place: f.Grants[0].Place},
		{Credential: "api", Placeholder: "short", Place: f.Grants[0].Place},
		{Credential: "key", Placeholder: f.Grants[1].Placeholder, Place: control.Place{Type: "header", Header: "Cookie"}},
	}
	if err := odd.Write(k.cells, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(control.Path(k.cells, "cell3"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.stop()
	k.start()
	k.client.Attach(f)
	k.client.Attach(odd)
	inject := func(cell, run, url string) error {
		r := request("GET", url)
		return k.client.Inject(t.Context(), pass(t, cell, run, r), r)
	}
	wantDenied(t, inject("cell2", "run1", "https://api.test/v1/x"), rules.CredentialRevoked)
	wantDenied(t, inject("cell2", "run1", "https://key.test/"), rules.CredentialRevoked)
	wantDenied(t, inject("cell3", "run1", "https://api.test/v1/x"), rules.CredentialRevoked)
	for _, url := range []string{"https://api.test/v1/x", "https://key.test/"} {
		if err := inject("cell1", "run1", url); err != nil {
			t.Errorf("twin, %s: %v", url, err)
		}
	}
}

func TestCredentialsList(t *testing.T) {
	k := newKit(t)
	k.grant("cell1", "run1", "api")
	r := request("GET", "https://api.test/v1/x")
	if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
		t.Fatal(err)
	}
	r = request("DELETE", "https://api.test/v1/x")
	wantDenied(t, k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r), rules.CredentialMismatch)
	if err := os.Chmod(k.secret("key"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out broker.Statuses
	if err := k.admin.Call(t.Context(), "/v1/credentials", struct{}{}, &out); err != nil {
		t.Fatal(err)
	}
	want := []broker.Status{
		{Name: "api", Type: "bearer", Owner: "team", Source: "file " + k.secret("api"), Status: "ok", LastUse: epoch, Uses: 1, Refused: 1, Cells: []string{"cell1"}},
		{Name: "git", Type: "basic", Source: "file " + k.secret("git"), Status: "ok", Cells: []string{}},
		{
			Name: "key", Type: "header", Source: "file " + k.secret("key"), Status: "error", Cells: []string{},
			Error: `reading secret file "` + k.secret("key") + `": its mode is 0644, so that others than its owner can reach it; run: chmod 0400 ` + k.secret("key"),
		},
		{Name: "maps", Type: "query", Source: "file " + k.secret("maps"), Status: "ok", Cells: []string{}},
	}
	if d := cmp.Diff(want, out.Credentials); d != "" {
		t.Errorf("credentials (-want +got):\n%s", d)
	}
}

// TestNothingShowsASecret drives everything that can fail and searches all that
// was said for any spelling of a secret: CR-30, LG-04.
func TestNothingShowsASecret(t *testing.T) {
	k := newKit(t)
	var said strings.Builder
	note := func(x any, err error) {
		b, jsonErr := json.Marshal(x)
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		said.Write(b)
		if err != nil {
			said.WriteString(err.Error())
		}
	}
	f := k.grant("cell1", "run1", "api", "key", "git", "maps")
	note(f, nil)
	bad := map[string]string{"api": realToken + "\nX: y", "key": otherKey + "\x00", "git": "ghp_16C7e42F292c6912E7710c838347Ae178B4aü", "maps": " AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"}
	for _, round := range []string{"good", "bad content", "bad mode", "gone"} {
		for name, text := range bad {
			switch round {
			case "bad content":
				writeSecret(t, k.secret(name), text)
			case "bad mode":
				if err := os.Chmod(k.secret(name), 0o666); err != nil {
					t.Fatal(err)
				}
			case "gone":
				if err := os.Remove(k.secret(name)); err != nil {
					t.Fatal(err)
				}
			}
			for _, url := range []string{"https://" + name + ".test/v1/x", "https://ok.test/", "https://evil.test/v1/x"} {
				r := request("GET", url, "Authorization", "Bearer "+realToken, "X-Api-Key", otherKey)
				note(nil, k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r))
			}
			var g broker.Grants
			err := k.admin.Call(t.Context(), "/v1/grants", broker.GrantRequest{Cell: "other", Run: "r", Credentials: []string{name}}, &g)
			note(g, err)
			k.revoke("other")
			var list broker.Statuses
			note(list, k.admin.Call(t.Context(), "/v1/credentials", struct{}{}, &list))
			note(list, nil)
			for _, op := range []string{"test", "refresh"} {
				var out json.RawMessage
				note(out, k.admin.Call(t.Context(), "/v1/credentials/"+op, broker.Named{Credential: name}, &out))
				note(out, nil)
			}
		}
	}
	for name := range bad {
		note(nil, k.admin.Call(t.Context(), "/v1/credentials/revoke", broker.Named{Credential: name}, nil))
	}
	note(nil, k.admin.Call(t.Context(), "/v1/inject", map[string]any{"cell": realToken[:0], "unknown": 1}, nil))
	note(nil, errors.New(k.log.String()))
	var all []needle.Needle
	for i, s := range []string{realToken, realToken[8:24], otherKey, otherKey[:16], "16C7e42F292c6912E7710c838347Ae178B4a", "SyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"} {
		all = append(all, needle.Spellings([]byte(s), nil, i)...)
	}
	set := needle.NewSet(all)
	if h, ok := needle.Next(set, said.String(), 0); ok {
		t.Errorf("%q was said", h.Needle.Text)
	}
	if _, ok := needle.Next(set, "Bearer "+realToken, 0); !ok || said.Len() < 1000 {
		t.Error("twin: the search finds nothing anywhere")
	}
}

// BenchmarkSigned tells what a signature adds to a request, from one run: the
// gateway's half, the unix socket and the broker, with a secret in a file. The
// figures are medians.
func BenchmarkSigned(b *testing.B) {
	k := newKit(b)
	k.stop()
	k.tweak = func(c *broker.Config) { c.Now = func() time.Time { return time.Now().Add(time.Minute) } }
	k.start()
	k.grant("cell1", "run1", "api", "key")
	signed, plain := request("GET", "https://api.test/v1/x", "User-Agent", "x"), request("GET", "https://ok.test/v1/x", "User-Agent", "x")
	ps, pp := pass(b, "cell1", "run1", signed), pass(b, "cell1", "run1", plain)
	var took [2][]time.Duration
	for b.Loop() {
		for i, one := range []struct {
			r *http.Request
			p gate.Pass
		}{{plain, pp}, {signed, ps}} {
			began := time.Now()
			if err := k.client.Inject(b.Context(), one.p, one.r); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	median := func(i int) float64 { return float64(took[i][len(took[i])/2].Nanoseconds()) / 1000 }
	b.ReportMetric(median(0), "unsigned-µs")
	b.ReportMetric(median(1), "signed-µs")
	b.ReportMetric(median(1)-median(0), "added-µs")
}

func BenchmarkInject(b *testing.B) {
	k := newKit(b)
	k.grant("cell1", "run1", "api")
	r := request("GET", "https://api.test/v1/x", "User-Agent", "x")
	p := pass(b, "cell1", "run1", r)
	b.ReportAllocs()
	for b.Loop() {
		if err := k.client.Inject(b.Context(), p, r); err != nil {
			b.Fatal(err)
		}
	}
}
