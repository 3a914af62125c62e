package answer_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/answer"
)

// past is what a quiet fortnight leaves.
func past() []audit.Record {
	var out []audit.Record
	for i := range 14 * 4 {
		when := start.Add(-time.Duration(i*i%97+6*i+25) * time.Hour)
		for _, kind := range []audit.Kind{audit.Admit, audit.Done} {
			r := audit.Record{
				Kind: kind, ID: fmt.Sprintf("past%s%d", kind, i), Time: when, Run: fmt.Sprintf("past%d", i), Verdict: "inspect",
				Reason: "allowed", Host: "api.known.example", Port: 443, Method: "GET", Path: "/v1",
			}
			if kind == audit.Done {
				r.Ref, r.Sent = fmt.Sprintf("pastadmit%d", i), 300_000
			}
			out = append(out, r)
		}
	}
	return out
}

func anomalies(t *testing.T, recs ...audit.Record) []answer.Anomaly {
	t.Helper()
	x := opened(t, append(past(), recs...)...)
	from := start.Add(-24 * time.Hour)
	got, err := answer.Anomalies(t.Context(), x, answer.Span{From: from, Until: start.Add(24 * time.Hour)},
		answer.Span{From: start.Add(-30 * 24 * time.Hour), Until: from})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// each makes n records out of one.
func each(n int, r audit.Record, change func(i int, r *audit.Record)) []audit.Record {
	var out []audit.Record
	for i := range n {
		c := r
		c.ID, c.Time = fmt.Sprintf("a%d", i), start.Add(time.Duration(i)*17*time.Minute)
		change(i, &c)
		out = append(out, c)
	}
	return out
}

// Nothing is below an address.
func TestNewAddressIsNoDomain(t *testing.T) {
	for host, want := range map[string]string{
		"192.0.2.7":       "192.0.2.7 was asked for, and refused, for the first time; it is not in the log of the 29 days before.",
		"a.fresh.example": "a.fresh.example was asked for, and refused, for the first time; no name below fresh.example is in the log of the 29 days before.",
	} {
		got := anomalies(t, audit.Record{Kind: audit.Refuse, ID: "x", Time: start, Verdict: "deny", Reason: "address_not_allowed", Host: host, Port: 443})
		if len(got) != 1 || got[0].Why != want {
			t.Errorf("anomalies of %s = %+v, want %q", host, got, want)
		}
	}
}

// TestScanOfAddressesIsOneFinding: a run that asks for many addresses is told once, with how
// many they were and the first of them.
func TestScanOfAddressesIsOneFinding(t *testing.T) {
	scan := func(n int, run string, refused func(i int) bool) (recs []audit.Record) {
		for i := range n {
			r := audit.Record{Kind: audit.Admit, ID: fmt.Sprintf("%s%d", run, i), Time: start.Add(time.Duration(i) * time.Hour / 20), Run: run, Verdict: "inspect", Reason: "allowed", Host: fmt.Sprintf("192.0.2.%d", i), Port: 443}
			if run == "" {
				r.Host = fmt.Sprintf("2001:db8::%x", i+1)
			}
			if refused(i) {
				r.Kind, r.Verdict, r.Reason = audit.Refuse, "deny", "address_not_allowed"
			}
			recs = append(recs, r)
		}
		return recs
	}
	always, never := func(int) bool { return true }, func(int) bool { return false }
	for name, tt := range map[string]struct {
		recs []audit.Record
		want map[string]int // sentences, with how many ids
	}{
		"many": {scan(200, "r", always), map[string]int{"Run r asked for 200 addresses (192.0.2.0, 192.0.2.1, 192.0.2.2, …), and was refused, for the first time; none of them is in the log of the 29 days before.": 10}},
		"some are let through": {scan(4, "r", func(i int) bool { return i > 0 }), map[string]int{
			"Run r asked for 4 addresses (192.0.2.0, 192.0.2.1, 192.0.2.2, …), and was admitted 1 times and refused 3 times, for the first time; none of them is in the log of the 29 days before.": 4,
		}},
		"two, of no run": {scan(2, "", never), map[string]int{"Somebody asked for 2 addresses (2001:db8::1, 2001:db8::2), and was admitted, for the first time; none of them is in the log of the 29 days before.": 2}},
		"of two runs, and a name": {slices.Concat(scan(3, "r1", always), each(1, audit.Record{Kind: audit.Refuse, Run: "r2", Verdict: "deny", Reason: "address_not_allowed", Host: "198.51.100.1"}, func(int, *audit.Record) {}),
			each(1, audit.Record{Kind: audit.Refuse, Run: "r1", Verdict: "deny", Reason: "host_not_allowed", Host: "a.fresh.example"}, func(int, *audit.Record) {})), map[string]int{
			"Run r1 asked for 3 addresses (192.0.2.0, 192.0.2.1, 192.0.2.2), and was refused, for the first time; none of them is in the log of the 29 days before.": 3,
			"198.51.100.1 was asked for, and refused, for the first time; it is not in the log of the 29 days before.":                                               1,
			"a.fresh.example was asked for, and refused, for the first time; no name below fresh.example is in the log of the 29 days before.":                       1,
		}},
	} {
		got := map[string]int{}
		for _, a := range anomalies(t, tt.recs...) {
			if a.Kind == answer.NewDomain {
				got[a.Why] = len(a.IDs)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Each case has a twin beside it that is not odd.
func TestAnomalies(t *testing.T) {
	admit := audit.Record{Kind: audit.Admit, Run: "r", Cell: "c", Verdict: "inspect", Reason: "allowed", Host: "api.known.example", Port: 443, Method: "GET", Path: "/v1"}
	refuse := admit
	refuse.Kind, refuse.Verdict, refuse.Reason = audit.Refuse, "deny", "path_not_allowed"
	done := admit
	done.Kind, done.Ref = audit.Done, "x"
	name := audit.Record{Kind: audit.DNS, Run: "r", QType: "A", Verdict: "deny", Reason: "host_not_allowed"}
	letters := "a7f3k9q2m5x8c1v6b4n0z"
	label := func(i int) string { return letters[i:] + letters[:i] }
	tests := []struct {
		name string
		recs []audit.Record
		want string // kind host, or "" for nothing
	}{
		{"a domain that was never asked for", each(1, refuse, func(_ int, r *audit.Record) { r.Host = "drop.fresh.example" }), "new_domain drop.fresh.example"},
		{"another name of a known domain", each(1, admit, func(_ int, r *audit.Record) { r.Host = "www.known.example" }), ""},
		{"an upload like never before", each(1, done, func(_ int, r *audit.Record) { r.Sent = 5 << 20 }), "upload api.known.example"},
		{"an upload as ever", each(1, done, func(_ int, r *audit.Record) { r.Sent = 900_000 }), ""},
		{"data in names", each(4, name, func(i int, r *audit.Record) { r.Host = label(i) + ".t.known.example" }), "random_name known.example"},
		{"words in names", each(4, name, func(i int, r *audit.Record) { r.Host = fmt.Sprintf("storage-eu-west-%d.t.known.example", i) }), ""},
		{"data in paths", each(4, admit, func(i int, r *audit.Record) { r.Path = "/x/" + strings.Repeat(label(i), 4) }), "random_path known.example"},
		{"EX-03 data in names of packages", each(4, admit, func(i int, r *audit.Record) { r.Path = "/@" + strings.Repeat(label(i), 3) + "/pkg" }), "random_path known.example"},
		{"EX-03 short data in names of packages, a limit", each(4, admit, func(i int, r *audit.Record) { r.Path = "/@" + label(i) + "/" + strings.Repeat("part/", 12) }), ""},
		{"identifiers in paths", each(4, admit, func(i int, r *audit.Record) {
			r.Path = "/v1/charges/ch_3MmlLrLkdIwHu7ix0snN0B15/" + strings.Repeat("part/", i+4)
		}), ""},
		{"twenty-five refusals in a minute", each(25, refuse, func(i int, r *audit.Record) {
			r.Time = start.Add(time.Duration(i*i) * 90 * time.Millisecond)
		}), "deny_burst "},
		{"twenty-five looked for beside an address", each(25, name, func(i int, r *audit.Record) {
			r.Host, r.QType, r.Reason, r.Answer = "api.known.example", "AAAA", "dns_type_not_allowed", "NODATA"
			r.Time = start.Add(time.Duration(i) * time.Second)
		}), ""},
		{"twenty-five types that nobody asks for by habit", each(25, name, func(i int, r *audit.Record) {
			r.Host, r.QType, r.Reason, r.Answer = "api.known.example", "TXT", "dns_type_not_allowed", "NODATA"
			r.Time = start.Add(time.Duration(i) * time.Second)
		}), "deny_burst "},
		{"twenty-five refusals in an afternoon", each(25, refuse, func(i int, r *audit.Record) {
			r.Time = start.Add(time.Duration(i*i) * 40 * time.Second)
		}), ""},
		{"a clock", each(12, admit, func(i int, r *audit.Record) {
			r.Time = start.Add(time.Duration(i)*30*time.Second + time.Duration(i%3)*200*time.Millisecond)
		}), "beacon api.known.example"},
		{"somebody at work", each(12, admit, func(i int, r *audit.Record) { r.Time = start.Add(time.Duration(i*i) * 30 * time.Second) }), ""},
		{"a leaked placeholder", each(1, audit.Record{Kind: audit.Credential, Run: "r", Verdict: "deny", Reason: "placeholder_leak", Credential: "stripe", Host: "api.known.example"}, func(int, *audit.Record) {}), "placeholder_leak api.known.example"},
		{"a leak that two records tell of", append(each(1, refuse, func(_ int, r *audit.Record) { r.Reason = "placeholder_leak" }),
			audit.Record{Kind: audit.Credential, ID: "b0", Ref: "a0", Time: start, Run: "r", Reason: "placeholder_leak", Credential: "stripe", Host: "api.known.example"}), "placeholder_leak api.known.example"},
		{"a credential that was refused", each(1, audit.Record{Kind: audit.Credential, Run: "r", Verdict: "deny", Reason: "credential_unavailable", Credential: "stripe", Host: "api.known.example"}, func(int, *audit.Record) {}), ""},
		{"a client that pins", each(1, refuse, func(_ int, r *audit.Record) { r.Reason = "client_rejected_ca" }), "client_rejected_ca api.known.example"},
		{"a client that is refused after it trusts", each(1, refuse, func(_ int, r *audit.Record) { r.Reason = "authority_mismatch" }), ""},
		{"a client that pins, and that nobody asked about", each(1, refuse, func(_ int, r *audit.Record) {
			r.Reason, r.Time = "client_rejected_ca", start.Add(25*time.Hour)
		}), ""},
		{"packets beside the gateway", each(1, audit.Record{Kind: audit.Bypass, Run: "r"}, func(int, *audit.Record) {}), "bypass "},
		{"packets through the gateway", each(1, audit.Record{Kind: audit.DNS, Run: "r", QType: "A", Verdict: "inspect", Reason: "allowed", Host: "api.known.example"}, func(int, *audit.Record) {}), ""},
		{"a gap", each(1, audit.Record{Kind: audit.Gap, Error: "no space left"}, func(int, *audit.Record) {}), "gap "},
		{"a collector that is behind", each(1, audit.Record{Kind: audit.Ship, Error: "no space left"}, func(int, *audit.Record) {}), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, a := range anomalies(t, tt.recs...) {
				got = append(got, a.Kind+" "+a.Host)
				if !strings.HasSuffix(a.Why, ".") || len(a.IDs) == 0 || len(a.IDs) > 10 || a.IDs[0] == "" || a.First.IsZero() {
					t.Errorf("anomaly without a sentence, a time or ids: %+v", a)
				}
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, "; ")); diff != "" {
				t.Errorf("anomalies (-want +got):\n%s", diff)
			}
		})
	}
}

// A burst is told with all its refusals, and dropped packets in words.
func TestAnomaliesTellHowMuch(t *testing.T) {
	refuse := audit.Record{Kind: audit.Refuse, Run: "r", Cell: "c", Verdict: "deny", Reason: "path_not_allowed", Host: "api.known.example", Port: 443, Method: "GET", Path: "/v1"}
	every := func(n int, step time.Duration) []audit.Record {
		return each(n, refuse, func(i int, r *audit.Record) { r.Time = start.Add(time.Duration(i) * step) })
	}
	for want, recs := range map[string][]audit.Record{
		"Run r was refused 20 times within a minute: ":                           every(20, time.Second),
		"Run r was refused 500 times within a minute: ":                          every(500, 100*time.Millisecond),
		"Run r was refused 400 times in 6m39s, up to 61 times within a minute: ": every(400, time.Second),
		"another way out; packets dropped: 3 UDP, 1 ICMP, 2 too many for the gateway": {{
			Kind: audit.Bypass, ID: "b", Time: start, Run: "r", Data: []byte(`{"udp":3,"icmp":1,"tcp":0,"other":0,"limited":2}`),
		}},
	} {
		if got := anomalies(t, recs...); len(got) == 0 || !strings.Contains(got[0].Why, want) {
			t.Errorf("anomalies = %+v, want first: %s", got, want)
		}
	}
}

// With no past, everything would be new, and so nothing is.
func TestAnomaliesWithoutPast(t *testing.T) {
	x := opened(t, stories()...)
	got, err := answer.Anomalies(t.Context(), x, answer.Span{From: at(0), Until: at(24 * time.Hour)}, answer.Span{From: at(-time.Hour), Until: at(0)})
	if err != nil || len(got) != 0 {
		t.Errorf("anomalies = %v, %v, want none", got, err)
	}
}

// TestBeaconOfManyRequests: one that goes on for long is found by all of its requests,
// over several shapes of them, and one that stumbles late is none.
func TestBeaconOfManyRequests(t *testing.T) {
	admit := audit.Record{Kind: audit.Admit, Run: "r", Cell: "c", Verdict: "inspect", Reason: "allowed", Host: "api.known.example", Port: 443, Method: "GET", Path: "/v1"}
	for _, tt := range []struct {
		late time.Duration
		run  string
		want string
	}{
		{0, "r", "Run r asked api.known.example 5000 times, every 5s almost"},
		{0, "", "asked api.known.example 5000 times, every 5s almost"},
		{15 * time.Minute, "r", ""},
	} {
		recs := each(5000, admit, func(i int, r *audit.Record) {
			r.Run = tt.run
			r.Time = start.Add(time.Duration(i) * 5 * time.Second)
			if i%3 == 0 {
				r.Method = "HEAD"
			}
			if i > 4500 {
				r.Time = r.Time.Add(tt.late)
			}
		})
		said := ""
		for _, a := range anomalies(t, recs...) {
			if a.Kind == answer.Beacon {
				said += a.Why
				if len(a.IDs) != 10 || a.IDs[0] != "a0" || a.IDs[9] != "a9" || !a.First.Equal(start) {
					t.Errorf("first %v, ids %v", a.First, a.IDs)
				}
			}
		}
		if said == "" != (tt.want == "") || !strings.Contains(said, tt.want) {
			t.Errorf("late by %v: %q, want %q", tt.late, said, tt.want)
		}
	}
}

// Beacons are what all the times of all requests, one after the other, say: whatever
// the hours, shapes and order that the index keeps them in.
func TestBeaconsAreThoseOfTheirTimes(t *testing.T) {
	d := rand.New(rand.NewPCG(1, 2))
	var recs []audit.Record
	times := map[string][]time.Time{} // by host and run
	for i := range 60 {
		host, run := fmt.Sprintf("h%d.example", i%7), []string{"", "r1", "r2", "r3"}[d.IntN(4)]
		every := time.Duration(200+d.IntN(9_000_000)) * time.Millisecond / 10
		at, jitter := start.Add(time.Duration(d.IntN(3600))*time.Second), d.Float64()/3
		for range 4 + d.IntN(60) {
			at = at.Add(time.Duration(float64(every) * (1 + jitter*(d.Float64()*2-1))))
			r := audit.Record{
				Kind: []audit.Kind{audit.Admit, audit.Refuse}[d.IntN(2)], ID: fmt.Sprintf("b%d", len(recs)), Time: at, Run: run, Host: host, Method: []string{"GET", "POST"}[d.IntN(2)],
			}
			if at.Before(start.Add(24 * time.Hour)) {
				recs = append(recs, r)
				times[host+" "+run] = append(times[host+" "+run], at)
			}
		}
	}
	want := map[string]bool{}
	for who, list := range times {
		slices.SortFunc(list, time.Time.Compare)
		n := float64(len(list) - 1)
		mean := float64(list[len(list)-1].Sub(list[0])) / n
		sum := 0.0
		for i := 1; i < len(list); i++ {
			sum += math.Pow(float64(list[i].Sub(list[i-1]))-mean, 2)
		}
		if len(list) >= 8 && mean >= float64(time.Second) && math.Sqrt(sum/n) <= mean/10 {
			want[who] = true
		}
	}
	got := map[string]bool{}
	for _, a := range anomalies(t, recs...) {
		if a.Kind == answer.Beacon {
			got[a.Host+" "+a.Run] = true
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) < 2 || len(want) == len(times) {
		t.Errorf("%d of %d are regular (-want +got):\n%s", len(want), len(times), diff)
	}
}
