package answer_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/answer"
	"sallyport/audit/index"
)

// busy is a log of three runs at once, of few places, in which records refer to others
// of any run, before or after them, or to none.
func busy(t *testing.T, seed uint64) (*index.Index, []audit.Record) {
	t.Helper()
	d := rand.New(rand.NewPCG(seed, 2))
	of := func(list ...string) string { return list[d.IntN(len(list))] }
	const n = 1500
	var recs []audit.Record
	for i := range n {
		r := audit.Record{
			Kind: audit.Kind(of("admit", "admit", "done", "done", "refuse", "dns", "credential", "bypass", "gap", "policy.load")),
			ID:   fmt.Sprintf("i%d", i), Time: at(time.Duration(i) * time.Second), Run: of("R1", "R2", "R3", ""), Policy: of("", "p1", "p2", "p3", "p4"),
			Cell: of("c1", "c2"), Rule: of("", "r"), Sent: int64(d.IntN(9)), Received: int64(d.IntN(9)),
		}
		if r.Run != "" && d.IntN(100) == 0 {
			r.Kind = audit.Kind(of("run.start", "run.end", "cell.up"))
			r.Data = []byte(fmt.Sprintf(`{"n":%d,"asked":1}`, d.IntN(3)))
		}
		if d.IntN(9) > 0 && r.Kind == audit.Done || d.IntN(20) == 0 {
			r.Ref = fmt.Sprintf("i%d", min(max(i-20+d.IntN(25), 0), n))
		}
		if d.IntN(3) > 0 {
			r.Host, r.Port, r.Method, r.Path = of("a", "b"), 443, of("GET", "PUT"), of("", "/x", "/y")
			r.Verdict, r.Reason, r.Credential, r.QType = of("deny", "inspect"), of("allowed", "host_not_allowed"), of("", "k"), of("", "A")
		}
		recs = append(recs, r)
	}
	x := opened(t, recs...)
	var list []audit.Record
	for r, err := range x.Records(t.Context(), "ORDER BY r.seq") {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return x, list
}

// A timeline is what one reads out of the records from the first to the last.
func TestTimelineIsWhatTheRecordsSay(t *testing.T) {
	for seed := range uint64(3) {
		x, list := busy(t, seed)
		for _, run := range []string{"R1", "R2", "R3"} {
			want := told(list, run)
			_, steps, err := answer.Timeline(t.Context(), x, run)
			if err != nil {
				t.Fatal(err)
			}
			var got []answer.Step
			for s, err := range steps {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, s)
			}
			if diff := gocmp.Diff(want, got); diff != "" || len(want) < 100 {
				t.Fatalf("seed %d, %s (-want +got):\n%s", seed, run, diff)
			}
		}
	}
}

// told is the timeline of a run, made record by record.
func told(list []audit.Record, run string) (steps []answer.Step) {
	first, last, ended := len(list), 0, false
	policies, admitted, done := map[string]bool{}, map[string]bool{}, map[string]*audit.Record{}
	for i := range list {
		r := &list[i]
		if r.Run == run {
			first, last, ended = min(first, i), i, ended || r.Kind == audit.RunEnd
			policies[r.Policy] = true
		}
		admitted[r.ID] = admitted[r.ID] || r.Kind == audit.Admit
		if r.Kind == audit.Done && r.Ref != "" && done[r.Ref] == nil {
			done[r.Ref] = r
		}
	}
	if !ended {
		last = len(list)
	}
	for i, r := range list {
		around := r.Kind == audit.LogOpen || r.Kind == audit.LogClose || r.Kind == audit.Gap || r.Kind == audit.PolicyLoad && policies[r.Policy]
		if r.Run != run && (r.Run != "" || !around || i < first || i > last) || r.Kind == audit.Done && admitted[r.Ref] {
			continue
		}
		s := answer.Step{Record: r}
		if r.Kind == audit.Admit {
			s.Done = done[r.ID]
		}
		steps = append(steps, s)
	}
	return steps
}

// A difference is what one counts in the records from the first to the last.
func TestDiffIsWhatTheRecordsSay(t *testing.T) {
	for seed := range uint64(3) {
		x, list := busy(t, seed)
		for _, runs := range [][2]string{{"R1", "R2"}, {"R3", "R1"}} {
			a, b := counted(list, runs[0]), counted(list, runs[1])
			var want []answer.Difference
			same := 0
			for p, s := range a {
				if o := b[p]; o == nil || o.Count != s.Count {
					want = append(want, answer.Difference{Place: p, A: s, B: o})
				} else {
					same++
				}
			}
			for p, s := range b {
				if a[p] == nil {
					want = append(want, answer.Difference{Place: p, B: s})
				}
			}
			c, err := answer.Diff(t.Context(), x, runs[0], runs[1])
			if err != nil {
				t.Fatal(err)
			}
			got := c.Places
			for _, list := range [][]answer.Difference{want, got} {
				slices.SortFunc(list, func(a, b answer.Difference) int { return cmp.Compare(fmt.Sprint(a.Place), fmt.Sprint(b.Place)) })
			}
			if diff := gocmp.Diff(want, got); diff != "" || c.Same != same || len(want) < 20 {
				t.Errorf("seed %d, %v: %d the same, want %d (-want +got):\n%s", seed, runs, c.Same, same, diff)
			}
		}
	}
}

// counted is what a run did at each place, record by record.
func counted(list []audit.Record, run string) map[answer.Place]*answer.Side {
	sides, of := map[answer.Place]*answer.Side{}, map[string]*answer.Side{}
	for _, r := range list {
		if r.Run != run {
			continue
		}
		switch r.Kind {
		case audit.Admit, audit.Refuse, audit.DNS, audit.Credential, audit.Bypass:
			if r.Kind == audit.Credential && r.Reason == "allowed" {
				continue
			}
			p := answer.Place{Kind: r.Kind, Host: r.Host, Port: r.Port, Method: r.Method, Path: r.Path, QType: r.QType, Verdict: r.Verdict, Reason: r.Reason, Credential: r.Credential}
			if sides[p] == nil {
				sides[p] = &answer.Side{ID: r.ID}
			}
			sides[p].Count++
			of[r.ID] = sides[p]
		case audit.Done:
			if s := of[r.Ref]; s != nil {
				s.Sent += r.Sent
				s.Received += r.Received
			}
		default:
		}
	}
	return sides
}
