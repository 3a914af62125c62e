package broker_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"sallyport/control"
	"sallyport/rules"
)

// TestAnotherRunsPlaceholder: JW-06. One that was carried over from another run is a leak
// wherever it turns up, also where no credential is, and in a cell that has none.
func TestAnotherRunsPlaceholder(t *testing.T) {
	k := newKit(t)
	own := k.grant("cell1", "run1", "api").Grants[0].Placeholder
	other := k.grant("cell2", "run2", "git").Grants[0].Placeholder
	k.client.Attach(control.CellFile{Cell: "cell3", Run: "run3", Policy: "p"})
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+other))
	tests := []struct {
		name, cell, url string
		header          []string
		leak            bool
	}{
		{"a header", "cell1", "https://ok.test/", []string{"X-Note", "see " + other + "!"}, true},
		{"authorization", "cell1", "https://api.test/v1/x", []string{"Authorization", "Bearer " + other}, true},
		{"basic", "cell1", "https://git.test/", []string{"Authorization", basic}, true},
		{"the path", "cell1", "https://ok.test/" + other, nil, true},
		{"the query", "cell1", "https://ok.test/?q=" + other, nil, true},
		{"a cell without grants", "cell3", "https://ok.test/?q=" + other, nil, true},
		{"a cell that nobody knows", "cell9", "https://ok.test/?q=" + other, nil, true},
		{"twin, its own run", "cell2", "https://git.test/", []string{"Authorization", basic}, false},
		{"twin, the end of it cut off", "cell1", "https://ok.test/?q=" + other[:len(other)-1], nil, false},
		{"twin, nothing", "cell1", "https://ok.test/" + strings.Repeat("path/", 200), nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			leaked := ""
			for _, c := range k.client.Find(tt.cell, request("GET", tt.url, tt.header...)) {
				if c.State == rules.Leaked {
					leaked = c.Credential
				}
			}
			if want := map[bool]string{true: "git"}[tt.leak]; leaked != want {
				t.Errorf("leaked %q, want %q", leaked, want)
			}
		})
	}
	// Through the gate: refused, though neither host nor policy knows the credential.
	r := request("GET", "https://ok.test/?q="+other)
	if _, err := admit(t, "cell1", "run1", r, k.client.Find("cell1", r)); err == nil {
		t.Error("admitted")
	} else {
		wantDenied(t, err, rules.PlaceholderLeak)
	}
	k.client.Detach("cell2")
	if got := k.client.Find("cell1", r); len(got) != 0 {
		t.Errorf("after its run ended: %v", got)
	}
	// A name of a header is folded on its way; the placeholder in one is a leak too.
	for _, name := range []string{own, strings.ToLower(own), strings.ToUpper(own)} {
		leak := false
		for _, c := range k.client.Find("cell1", request("GET", "https://ok.test/", name, "1")) {
			leak = leak || c.State == rules.Leaked
		}
		if !leak {
			t.Errorf("a header called %q is no leak", name)
		}
	}
	if got := k.client.Find("cell1", request("GET", "https://ok.test/", own[:len(own)-1], "1")); len(got) != 0 {
		t.Errorf("twin: %v", got)
	}
}

func BenchmarkFindBesideOthers(b *testing.B) {
	k := newKit(b)
	k.grant("cell1", "run1", "api")
	k.grant("cell2", "run2", "git", "key")
	r := request("GET", "https://ok.test/v1/things?page=2", "User-Agent", strings.Repeat("agent/1.0 ", 10), "Accept", "application/json",
		"X-Request-Id", "0123456789abcdef0123456789abcdef", "Cookie", strings.Repeat("a=b; ", 40))
	b.ReportAllocs()
	for b.Loop() {
		if got := k.client.Find("cell1", r); got != nil {
			b.Fatal(got)
		}
	}
}
