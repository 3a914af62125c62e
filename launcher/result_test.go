package launcher_test

import (
	"os"
	"regexp"
	"testing"

	"sallyport/launcher"
)

// What a policy did not decide is not said to be denied by it.
func TestWhatDeniedARequestIsTold(t *testing.T) {
	for _, tt := range []struct {
		reasons []string
		want    string
	}{
		{[]string{"host_not_allowed", "path_not_allowed", "host_not_allowed"}, "by policy (host_not_allowed, path_not_allowed)"},
		{[]string{"audit_unavailable", "audit_unavailable"}, "for want of a record (audit_unavailable)"},
		{[]string{"host_not_allowed", "limit", "placeholder_leak"}, "by policy (host_not_allowed, placeholder_leak) or over a limit (limit)"},
		{[]string{"credential_unavailable"}, "for want of a credential (credential_unavailable)"},
		{[]string{"bad_request"}, "as malformed (bad_request)"},
		{[]string{"client_rejected_ca"}, "because the client hung up in the handshake (client_rejected_ca)"},
		{
			[]string{"path_not_allowed", "limit", "client_gone"},
			"by policy (path_not_allowed), over a limit (limit) or because the client went away (client_gone)",
		},
	} {
		var denials []launcher.Denial
		for _, r := range tt.reasons {
			denials = append(denials, launcher.Denial{Reason: r})
		}
		if got := launcher.Because(denials); got != tt.want {
			t.Errorf("%v: denied %q, want %q", tt.reasons, got, tt.want)
		}
	}
}

// The reasons that have words of their own are reasons.
func TestReasonsThatAreToldAreReasons(t *testing.T) {
	code, err := os.ReadFile("result.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`"([a-z]+(?:_[a-z]+)+|limit)"[,:]`).FindAllSubmatch(code, -1)
	for _, m := range named {
		if !regexp.MustCompile("(?m)^\\| `" + string(m[1]) + "` \\|").Match(doc) {
			t.Errorf("docs/reasons.md has no reason %s", m[1])
		}
	}
	if len(named) < 10 {
		t.Errorf("%d reasons found in the code", len(named))
	}
}
