package broker_test

import (
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// TestTwoSignaturesInOneHeader: which of two grants a signature is of only the host
// tells. It was taken for the first one's, and refused as a leak where the second goes.
func TestTwoSignaturesInOneHeader(t *testing.T) {
	k := newKit(t)
	k.stop()
	template, value := policyfile.Template{{Name: "method"}, {Name: "target"}}, policyfile.Template{{Text: "v1="}, {Name: "signature"}}
	for _, i := range []int{1, 2} {
		k.creds[i].Scheme = policyfile.Scheme{Type: policyfile.HMACSigned, HMAC: policyfile.HMAC{
			Header: "X-Signature", Template: template, Value: value, Algorithm: "sha256", Encoding: "hex", Key: "raw", Time: "unix",
		}}
	}
	k.start()
	grants := k.grant("cell1", "run1", "key", "git", "api").Grants
	for _, url := range []string{"https://key.test/a", "https://git.test/a", "https://ok.test/a"} {
		r := request("GET", url, "X-Signature", "v1=of-the-program's-own")
		p, err := admit(t, "cell1", "run1", r, k.client.Find("cell1", r))
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		err = k.client.Inject(t.Context(), p, r)
		got := r.Header.Get("X-Signature")
		if signed := len(got) == len("v1=")+64 && strings.HasPrefix(got, "v1="); err != nil || signed != !strings.Contains(url, "ok.test") {
			t.Errorf("%s is sent %q, %v", url, got, err)
		}
	}
	for name, r := range map[string]struct {
		url, header, value string
		want               rules.Reason
	}{
		"the other's placeholder": {"https://git.test/a", "X-Signature", grants[0].Placeholder, rules.PlaceholderLeak},
		"inside a signature":      {"https://key.test/a", "X-Signature", "v1=" + grants[0].Placeholder, rules.PlaceholderLeak},
		"a key beside it":         {"https://key.test/a", "X-Api-Key", "mine", rules.ForeignCredential},
	} {
		req := request("GET", r.url, r.header, r.value)
		_, err := admit(t, "cell1", "run1", req, k.client.Find("cell1", req))
		t.Run(name, func(t *testing.T) { wantDenied(t, err, r.want) })
	}
}
