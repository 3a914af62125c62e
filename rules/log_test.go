package rules_test

import (
	"testing"

	"sallyport/rules"
)

// TestCapturesIsOfBodies: only what keeps bodies needs somebody who can read them; a rule
// that records less than others does not.
func TestCapturesIsOfBodies(t *testing.T) {
	for _, tt := range []struct {
		level rules.LogLevel
		want  bool
	}{{rules.LogNone, false}, {rules.LogMetadata, false}, {rules.LogRequest, true}, {rules.LogRequestResponse, true}} {
		p, err := rules.Compile(rules.Source{Name: "p", Digest: "sha256:00", Rules: []rules.Rule{
			{ID: "a", Action: rules.AllowAction, Hosts: hosts(t, "ok.test"), Ports: []uint16{443}, Log: tt.level},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if rule, got := p.Captures(); got != tt.want || got != (rule == "a") {
			t.Errorf("level %d: Captures() = %q, %v, want %v", tt.level, rule, got, tt.want)
		}
	}
}
