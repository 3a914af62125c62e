package policyfile_test

import (
	"strings"
	"testing"

	"sallyport/rules/policyfile"
)

// TestHostSpellings: what stands in a file is what is matched.
func TestHostSpellings(t *testing.T) {
	tests := []struct{ id, in, want string }{
		{"NM-01", "ok.test.", `write "ok.test"`},
		{"NM-02", "[evil.test]", "character '['"},
		{"NM-02", "[::1]", `write "::1"`},
		{"NM-03", "OK.test", `write "ok.test"`},
		{"NM-03", "*.WILD.test", `write "*.wild.test"`},
		{"NM-07", "*", "one wildcard"},
		{"NM-07", "**", "one wildcard"},
		{"NM-07", "*.", "one wildcard"},
		{"NM-07", "*ok.test", "one wildcard"},
		{"NM-07", "a.*.test", "one wildcard"},
		{"NM-07", "*.*.test", "one wildcard"},
		{"NM-07", "*.com", "public suffix"},
		{"NM-07", "*.co.uk", "public suffix"},
		{"NM-07", "*.test", "public suffix"},
		{"NM-07", "?.test", "character '?'"},
		{"NM-07", ".ok.test", `write "*.ok.test"`},
		{"NM-07", "*.github.io", "multi_tenant"},
		{"NM-07", "*.amazonaws.com", "multi_tenant"},
		{"NM-07", "*.s3.amazonaws.com", "multi_tenant"},
		{"NM-07", "*.1.2.3.4", "not an address"},
		{"NM-09", "ok.test@evil.test", "character '@'"},
		{"NM-11", "ok。test", `write "ok.test"`},
		{"NM-13", "xn--ok-.test", "xn--"},
		{"NM-14", "evil%2etest", "character '%'"},
		{"NM-23", "-a.test", "hyphen"},
		{"NM-23", "a..test", "empty label"},
		{"IP-02", "0x7f.1", "number"},
		{"IP-20", "2606:4700:0::1", `write "2606:4700::1"`},
		{"IP-03", "::ffff:8.8.8.8", `write "8.8.8.8"`},
		{"IP-01", "127.0.0.1", "cidrs: [127.0.0.1/32]"},
		{"IP-10", "169.254.169.254", "cidrs: [169.254.169.254/32]"},
		{"CF-09", "ok.test\\nhttp_access allow all", "character '\\n'"},
		{"CF-09", "ok.test evil.test", "character ' '"},
		{"CF-09", "ok.test#", `write "ok.test"`},
		{"CF-09", "ok.test:443", `write "ok.test" here, and the port under ports`},
		{"CF-09", "https://ok.test/", `write "ok.test"`},
		{"CF-09", "ok.test/", `write "ok.test"`},
		{"", "BÜCHER.test", `write "xn--bcher-kva.test"`},
		{"", "sallyport.internal", "reserved"},
		{"", "*.internal", "public suffix"},

		{"NM-03", "ok.test", ""},
		{"NM-04", "*.wild.test", ""},
		{"NM-13", "xn--bcher-kva.test", ""},
		{"NM-13", "bücher.test", ""},
		{"NM-07", "*.example.co.uk", ""},
		{"NM-07", "*.tenant.github.io", ""},
		{"NM-23", "_x.wild.test", ""},
		{"", "8.8.8.8", ""},
		{"", "2606:4700::1", ""},
	}
	for _, tt := range tests {
		_, err := policyfile.ParsePolicy("p.yaml", []byte(rule(`{host: "`+tt.in+`"}`, "")), nil)
		all := errorsOf(t, err)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: host %q: %v", tt.id, tt.in, err)
			}
			continue
		}
		if len(all) != 1 || !strings.Contains(all[0].Text, tt.want) || all[0].Line != 7 || all[0].Column != 19 {
			t.Errorf("%s: host %q: %v, want one error with %q at 7:19", tt.id, tt.in, err, tt.want)
		}
	}
}

func TestMultiTenantAcknowledged(t *testing.T) {
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(rule(`{host: "*.github.io"}`, "multi_tenant: acknowledged\n")), nil); err != nil {
		t.Error(err)
	}
	for allow, rest := range map[string]string{
		`{host: "*.com"}`: "multi_tenant: acknowledged\n", `{host: "*.github.io"}`: "multi_tenant: \"yes\"\n",
	} {
		if _, err := policyfile.ParsePolicy("p.yaml", []byte(rule(allow, rest)), nil); err == nil {
			t.Errorf("%s with %s loads", allow, rest)
		}
	}
	deny := head + "rules: [{id: d, reason: x, deny: {host: \"*.com\"}}]\n"
	if _, err := policyfile.ParsePolicy("p.yaml", []byte(deny), nil); err != nil {
		t.Errorf("denying much is safe: %v", err)
	}
}
