package broker_test

import (
	"strings"
	"testing"
)

// What looks for a secret is made once for each value of it, not for each request or
// message.
func TestScrubberIsMadeOnceForAValue(t *testing.T) {
	k := newKit(t)
	k.restart(holdNothing)
	k.grant("cell1", "run1", "api")
	hide := k.client.Hider("cell1")
	send := func() {
		r := request("GET", "https://api.test/v1/x")
		if err := k.client.Inject(t.Context(), pass(t, "cell1", "run1", r), r); err != nil {
			t.Fatal(err)
		}
	}
	if got := hide("it says " + realToken); !strings.Contains(got, realToken) {
		t.Errorf("before it is sent the text is %q, want it as it was", got)
	}
	send()
	answers, messages := k.client.Exposes("cell1")
	if got := hide("it says " + realToken); strings.Contains(got, realToken) || !strings.HasSuffix(got, "***") {
		t.Errorf("after it is sent the text is %q, want stars", got)
	}
	send()
	if a, m := k.client.Exposes("cell1"); a != answers || m != messages {
		t.Error("the same secret again made another scrubber")
	}
	writeSecret(t, k.secret("api"), "sk_test_second_second_second")
	send()
	if a, m := k.client.Exposes("cell1"); a == answers || m == messages {
		t.Error("another secret made no other scrubber")
	}
}
