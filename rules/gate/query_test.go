package gate_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// TestHashValues: what each parameter holds has a hash of its own, as it reads.
func TestHashValues(t *testing.T) {
	plain := func(s string) string { return "<" + s + ">" }
	tests := []struct {
		query, want string
		more        bool
	}{
		{"", "", false},
		{"word", "", false}, // the query's own hash finds it
		{"a=1", "<1>", false},
		{"a=1&b=two%20words&c=two+words", "<1> <two words> <two words>", false},
		{"a=&&b&c==", "<b> <=>", false},
		{"%61", "<a>", false},
		{"a=%zz&b=1%", "<%zz> <1%>", false},
		{"a=1;b=2", "<1;b=2>", false},
		{"x=" + strings.Repeat("1&x=", 31) + "2", strings.Repeat("<1> ", 31) + "<2>", false},
		{"x=" + strings.Repeat("1&x=", 32) + "2", strings.TrimSuffix(strings.Repeat("<1> ", 32), " "), true},
		{"x=" + strings.Repeat("1&x=", 32), strings.TrimSuffix(strings.Repeat("<1> ", 32), " "), false},
	}
	for _, tt := range tests {
		if got, more := gate.HashValues(tt.query, plain); got != tt.want || more != tt.more {
			t.Errorf("HashValues(%q) = %q, %v; want %q, %v", tt.query, got, more, tt.want, tt.more)
		}
	}
}

// TestQueryValuesAreRecorded: with what is admitted and what is refused, once each,
// and not under log: none.
func TestQueryValuesAreRecorded(t *testing.T) {
	for _, level := range []rules.LogLevel{rules.LogMetadata, rules.LogNone} {
		h := newHouse(t)
		under(t, h, rules.Totals{}, level)
		req := request(t, rules.Fetch, "api.test")
		many := make([]string, 40)
		for i := range many {
			many[i] = "n=" + strconv.Itoa(i)
		}
		req.Query = strings.Join(many, "&")
		p, err := h.Admit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Done(t.Context(), gate.Outcome{Status: 200}); err != nil {
			t.Fatal(err)
		}
		other := request(t, rules.Fetch, "other.test")
		other.Query = "token=abc"
		if _, err := h.Admit(t.Context(), other); err == nil {
			t.Fatal("admitted")
		}
		for _, r := range h.log.all() {
			n := len(strings.Fields(r.Values))
			want := 0
			switch {
			case r.Kind == audit.Refuse:
				want = 1
			case r.Kind == audit.Admit && level == rules.LogMetadata:
				want = 32
			}
			if n != want || slices.Contains(r.Cut, "query_values") != (want == 32) {
				t.Errorf("level %d, %s: %d values, want %d; cut %v", level, r.Kind, n, want, r.Cut)
			}
		}
	}
}

// TestLogNoneOfACredential: the record of a credential's use says no more than that
// of its request.
func TestLogNoneOfACredential(t *testing.T) {
	for _, level := range []rules.LogLevel{rules.LogMetadata, rules.LogNone} {
		h := newHouse(t)
		under(t, h, rules.Totals{}, level)
		req := request(t, rules.Fetch, "key.test")
		p, err := h.Admit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Used(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		for _, r := range h.log.all() {
			if shown := r.Path != "" || r.Query != ""; shown != (level == rules.LogMetadata) {
				t.Errorf("level %d, %s: path %q, query %q", level, r.Kind, r.Path, r.Query)
			}
		}
	}
}
