package limit_test

import (
	"errors"
	"testing"
	"time"

	"sallyport/rules"
	"sallyport/rules/limit"
)

// TestChangedLimitsFindTheCounts: another number, another period, and a limit of what had
// none, are compared with what was counted before.
func TestChangedLimitsFindTheCounts(t *testing.T) {
	before := rules.Limits{Requests: rules.Rate{N: 100, Period: 60}}
	tests := []struct {
		name string
		now  rules.Limits
		want string // the limit that is reached, "" for none
	}{
		{"fewer", rules.Limits{Requests: rules.Rate{N: 7, Period: 60}}, "7 requests in 60 seconds"},
		{"as many as there were", rules.Limits{Requests: rules.Rate{N: 8, Period: 60}}, ""},
		{"fewer in a day", rules.Limits{Requests: rules.Rate{N: 7, Period: 86400}}, "7 requests in 86400 seconds"},
		{"more in a day", rules.Limits{Requests: rules.Rate{N: 8, Period: 86400}}, ""},
		{"of octets", rules.Limits{Sent: rules.Rate{N: 700, Period: 3600}}, "700 octets sent in 3600 seconds"},
		{"of more octets", rules.Limits{Sent: rules.Rate{N: 701, Period: 3600}}, ""},
		{"none", rules.Limits{Body: 1}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c limit.Counter
			for range 7 {
				h, err := c.Take("r", noon, 0, rule(&before))
				if err != nil {
					t.Fatal(err)
				}
				h.End(noon, 100, 0)
			}
			h, err := c.Take("r", noon, 0, rule(&tt.now))
			if tt.want != "" {
				if reached(t, err).Limit != tt.want {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h.End(noon, 0, 0)
		})
	}
}

// TestAPeriodThatGrowsFindsTheOlder: what was past counting for a minute counts for a day.
func TestAPeriodThatGrowsFindsTheOlder(t *testing.T) {
	var c limit.Counter
	h, err := c.Take("r", noon, 0, rule(&rules.Limits{Requests: rules.Rate{N: 1, Period: 60}}))
	if err != nil {
		t.Fatal(err)
	}
	h.End(noon, 0, 0)
	later := noon.Add(20 * time.Hour)
	if _, err := c.Take("r", later, 0, rule(&rules.Limits{Requests: rules.Rate{N: 1, Period: 86400}})); reached(t, err).Wait < 3*time.Hour {
		t.Errorf("%+v", err)
	}
	if _, err := c.Take("r", later, 0, rule(&rules.Limits{Requests: rules.Rate{N: 1, Period: 3600}})); err != nil {
		t.Error(err)
	}
}

// TestRelimit: what is open goes on under the limits that hold now, with all that it has
// carried; what nobody counts as it crosses cannot.
func TestRelimit(t *testing.T) {
	var c limit.Counter
	h, err := c.Take("r", noon, 0, rule(octets(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := h.Send(noon, 1000); n != 1000 || err != nil { // and more is set aside
		t.Fatal(n, err)
	}
	if !h.Relimit(rule(octets(1 << 30))) {
		t.Error("the same limits end it")
	}
	if !h.Relimit(rule(octets(1200))) {
		t.Fatal("it is counted, and so can go on")
	}
	if n, err := h.Send(noon, 1000); n != 200 || reached(t, err).Limit != "1200 octets sent in 86400 seconds" {
		t.Errorf("%d of 200: %v", n, err)
	}
	if !h.Relimit(limit.Claim{Key: "rule"}) {
		t.Error("no limits end it")
	}
	if n, err := h.Send(noon, 1000); n != 1000 || err != nil {
		t.Errorf("without limits: %d, %v", n, err)
	}
	all := limit.Claim{Key: "all of policy", Limits: &rules.Limits{Sent: rules.Rate{N: 2300, Period: 60}, Concurrent: 1}, Scope: "policy"}
	if !h.Relimit(rule(octets(1<<30)), all) {
		t.Fatal("a further limit ends it")
	}
	if _, err := c.Take("r", noon, 0, all); reached(t, err).Limit != "1 at once" {
		t.Errorf("beside what is open: %v", err)
	}
	if n, err := h.Send(noon, 1000); n != 100 || reached(t, err).Scope != "policy" {
		t.Errorf("%d of 100: %v", n, err)
	}
	h.End(noon, 2300, 0)
	if h.Relimit(all); h.Relimit(rule(octets(1))) {
		if _, err := c.Take("r", noon.Add(2*time.Minute), 0, all); err != nil {
			t.Errorf("what has ended is open again: %v", err)
		}
	}
}

func TestRelimitOfWhatIsNotCounted(t *testing.T) {
	var c limit.Counter
	few := rule(&rules.Limits{Requests: rules.Rate{N: 9, Period: 60}})
	h, err := c.Take("r", noon, 0, few)
	if err != nil {
		t.Fatal(err)
	}
	var none *limit.Hold
	for name, x := range map[string]*limit.Hold{"counted": h, "not counted": none} {
		if !x.Relimit(few) || !x.Relimit(limit.Claim{Key: "rule"}) {
			t.Errorf("%s: limits of requests end what is open", name)
		}
		if x.Relimit(rule(octets(1 << 40))) {
			t.Errorf("%s: octets that nobody counts go on", name)
		}
	}
}

// notes is an Entry that fails on cue.
type notes struct {
	last [2]int64
	fail error
}

func (n *notes) Note(d limit.Direction, _ time.Time, amount int64) error {
	if n.fail == nil {
		n.last[d] = amount
	}
	return n.fail
}

// TestNothingCrossesThatIsNotNoted: what is noted is never less than what crossed, and
// what cannot be noted stays, and is free for others.
func TestNothingCrossesThatIsNotNoted(t *testing.T) {
	var c limit.Counter
	h, err := c.Take("r", noon, 50, rule(octets(100_000)))
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Aside(); got != [2]int64{50, 0} {
		t.Errorf("set aside: %v", got)
	}
	n := &notes{}
	h.Keep(n)
	crossed := [2]int64{}
	for i := range 300 {
		k, err := h.Send(noon, i)
		if err != nil {
			t.Fatal(err)
		}
		if crossed[0] += int64(k); crossed[0] > max(n.last[0], 50) || n.last[0] > crossed[0]+7000 {
			t.Fatalf("%d crossed, %d noted", crossed[0], n.last[0])
		}
	}
	n.fail = errors.New("no space left")
	if err := h.Expect(noon, 10); !errors.Is(err, n.fail) {
		t.Errorf("what cannot be noted is expected: %v", err)
	}
	if k, err := h.Receive(noon, 10); k != 0 || !errors.Is(err, n.fail) {
		t.Errorf("%d crossed, %v", k, err)
	}
	n.fail = nil
	if k, err := h.Receive(noon, 100_000); k != 100_000 || err != nil || n.last[1] != 100_000 {
		t.Errorf("%d crossed, %v, %v", k, err, n.last)
	}
}
