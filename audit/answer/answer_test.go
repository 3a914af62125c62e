package answer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/answer"
	"sallyport/audit/index"
)

var start = time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)

// opened writes recs, each at the time and with the id it has, and returns an
// index of them.
func opened(t *testing.T, recs ...audit.Record) *index.Index {
	t.Helper()
	base := t.TempDir()
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour,
		Now: func() time.Time { return start.Add(-100 * 24 * time.Hour) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range recs {
		if err := l.Append(t.Context(), &recs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	x, err := index.Open(t.Context(), index.Config{Dir: filepath.Join(base, "audit"), Path: filepath.Join(base, "index.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	if _, err := x.Update(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return x
}

func at(d time.Duration) time.Time { return start.Add(d) }

const digest = "sha256:abababababababababababababababababababababababababababababababab"

// stories are two runs of the same work, the second of which went astray.
func stories() []audit.Record {
	out := []audit.Record{{Kind: audit.PolicyLoad, ID: "P1", Time: at(0), Policy: digest}}
	for i, run := range []string{"RUNA", "RUNB"} {
		base := time.Duration(i+1) * time.Hour
		rec := func(kind audit.Kind, id string, after time.Duration) audit.Record {
			return audit.Record{
				Kind: kind, ID: fmt.Sprintf("%s%d", id, i+1), Time: at(base + after), Run: run,
				Cell: "cell" + run, Policy: digest,
			}
		}
		begin := rec(audit.RunStart, "S", 0)
		begin.Data = json.RawMessage(fmt.Sprintf(`{"image":"i%d","asked":"%d"}`, i, i))
		name := rec(audit.DNS, "N", time.Second)
		name.Host, name.QType, name.Verdict, name.Reason, name.Answer = "api.stripe.com", "A", "inspect", "allowed", "198.18.0.1"
		ask := rec(audit.Admit, "A", 2*time.Second)
		ask.Verdict, ask.Reason, ask.Rule, ask.Credential = "inspect", "allowed", "charges", "stripe"
		ask.Host, ask.Port, ask.Method, ask.Path, ask.Query = "api.stripe.com", 443, "POST", "/v1/charges", "hmac:11"
		done := ask
		done.Kind, done.ID, done.Ref, done.Time = audit.Done, fmt.Sprintf("D%d", i+1), ask.ID, at(base+3*time.Second)
		done.Status, done.Sent, done.Received = 200, int64(100*(i+1)), 50
		out = append(out, begin, name, ask, done)
		if i == 1 {
			no := rec(audit.Refuse, "R", 4*time.Second)
			no.Verdict, no.Reason, no.Host, no.Port, no.Method, no.Path = "deny", "host_not_allowed", "evil.example", 443, "POST", "/x"
			out = append(out, no)
		}
		end := rec(audit.RunEnd, "E", 5*time.Second)
		end.Data = json.RawMessage(fmt.Sprintf(`{"exit":%d}`, i))
		out = append(out, end)
	}
	return out
}

// What people copy out of an answer, or type in lower case, is found; an id of the
// other kind is told as that.
func TestFindsWhatPeopleCopy(t *testing.T) {
	x := opened(t,
		audit.Record{Kind: audit.RunStart, ID: "01KG929BT0AAAAAAAAAAAAAAAA", Run: "01KG929BT0TE78HSNTG4WNE1CK", Time: start},
		audit.Record{Kind: audit.Refuse, ID: "01KG929BT0BBBBBBBBBBBBBBBB", Run: "01KG929BT0TE78HSNTG4WNE1CK", Time: start},
		audit.Record{Kind: audit.Credential, ID: "01KG929BT0CCCCCCCCCCCCCCCC", Ref: "01KG929BT0BBBBBBBBBBBBBBBB", Run: "01KG929BT0TE78HSNTG4WNE1CK", Time: start},
	)
	for _, asked := range []string{"01KG929BT0BBBBBBBBBBBBBBBB", "01kg929bt0bbbbbbbbbbbbbbbb", "01kg929bt0b", "2"} {
		if s, err := answer.Show(t.Context(), x, asked); err != nil || s.ID != "01KG929BT0BBBBBBBBBBBBBBBB" || s.Of != nil {
			t.Errorf("Show(%s) = %v, %v", asked, s, err)
		}
	}
	if s, err := answer.Show(t.Context(), x, "01KG929BT0C"); err != nil || s.Of == nil || s.Of.ID != "01KG929BT0BBBBBBBBBBBBBBBB" {
		t.Errorf("Show of what is about another record = %v, %v, want that", s, err)
	}
	var other *answer.OtherError
	if _, err := answer.Show(t.Context(), x, "01kg929bt0te"); !errors.As(err, &other) || other.Run != "01KG929BT0TE78HSNTG4WNE1CK" || !errors.Is(err, index.ErrNone) {
		t.Errorf("Show(run) = %v, want an OtherError", err)
	}
	if _, _, err := answer.Timeline(t.Context(), x, "01kg929bt0bb"); !errors.As(err, &other) || other.Record != "01KG929BT0BBBBBBBBBBBBBBBB" {
		t.Errorf("Timeline(record) = %v, want an OtherError", err)
	}
	for _, asked := range []string{"", "7", "00", "-1", "99999999999999999999", "nobody"} {
		if s, err := answer.Show(t.Context(), x, asked); !errors.Is(err, index.ErrNone) || errors.As(err, &other) && other.Asked == asked {
			t.Errorf("Show(%q) = %v, %v, want ErrNone", asked, s, err)
		}
	}
	for host, want := range map[string]bool{"": true, "a.example": false} {
		x := opened(t, audit.Record{Kind: audit.DNS, ID: "A", Host: host, Time: start})
		got, err := answer.Unasked(t.Context(), x, answer.Span{From: start.Add(-time.Hour), Until: start.Add(time.Hour)})
		if err != nil || got != want {
			t.Errorf("Unasked(host %q) = %v, %v, want %v", host, got, err, want)
		}
	}
}

func TestShow(t *testing.T) {
	x := opened(t, stories()...)
	for _, id := range []string{"A1", "D1"} { // a done tells of its admit
		s, err := answer.Show(t.Context(), x, id)
		if err != nil {
			t.Fatal(err)
		}
		if s.ID != "A1" || s.Done == nil || s.Done.ID != "D1" || s.Lookup == nil || s.Lookup.ID != "N1" ||
			s.Run == nil || s.Run.ID != "S1" || s.Policy == nil || s.Policy.ID != "P1" {
			t.Errorf("Show(%s) = %+v", id, s)
		}
	}
	s, err := answer.Show(t.Context(), x, "R2")
	if err != nil || s.Done != nil || s.Lookup != nil || s.Host != "evil.example" {
		t.Errorf("Show(R2) = %+v, %v", s, err)
	}
}

// TestShowTellsTheLookUpOfTheAddress: stub resolvers ask for AAAA beside A, and last.
func TestShowTellsTheLookUpOfTheAddress(t *testing.T) {
	recs := stories()
	i := slices.IndexFunc(recs, func(r audit.Record) bool { return r.ID == "N1" })
	beside := recs[i]
	beside.ID, beside.QType, beside.Verdict, beside.Reason, beside.Answer = "N1b", "AAAA", "deny", "dns_type_not_allowed", "NODATA"
	s, err := answer.Show(t.Context(), opened(t, slices.Insert(recs, i+1, beside)...), "A1")
	if err != nil || s.Lookup == nil || s.Lookup.ID != "N1" {
		t.Errorf("Show(A1) = %+v, %v, want the look-up N1", s, err)
	}
}

func TestShowRefuses(t *testing.T) {
	x := opened(t, append(stories(), audit.Record{Kind: audit.Refuse, ID: "R2x", Time: at(0)})...)
	for id, want := range map[string]error{"": index.ErrNone, "nobody": index.ErrNone, "A": answer.ErrAmbiguous, "' OR 1=1 --": index.ErrNone, "%": index.ErrNone} {
		if s, err := answer.Show(t.Context(), x, id); !errors.Is(err, want) {
			t.Errorf("Show(%q) = %+v, %v, want %v", id, s, err, want)
		}
	}
	if s, err := answer.Show(t.Context(), x, "R2"); err != nil || s.ID != "R2" {
		t.Errorf("Show of an id with which another begins = %v, %v", s, err)
	}
}

func TestTimeline(t *testing.T) {
	x := opened(t, stories()...)
	run, steps, err := answer.Timeline(t.Context(), x, "RUNB")
	if err != nil || run != "RUNB" {
		t.Fatalf("Timeline = %q, %v", run, err)
	}
	var got []string
	for s, err := range steps {
		if err != nil {
			t.Fatal(err)
		}
		text := s.ID
		if s.Done != nil {
			text += "+" + s.Done.ID
		}
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"S2", "N2", "A2+D2", "R2", "E2"}, got); diff != "" {
		t.Errorf("Timeline (-want +got):\n%s", diff)
	}
	if _, _, err := answer.Timeline(t.Context(), x, "RUN"); !errors.Is(err, answer.ErrAmbiguous) {
		t.Errorf("Timeline(RUN) = %v, want ErrAmbiguous", err)
	}
	if _, _, err := answer.Timeline(t.Context(), x, "R9"); !errors.Is(err, index.ErrNone) {
		t.Errorf("Timeline(R9) = %v, want ErrNone", err)
	}
}

// What happened to the gateway while a run went on is told in its timeline: a
// restart and a gap, its own policies, and none of other times or policies.
func TestTimelineTellsOfTheGateway(t *testing.T) {
	const other = "sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd"
	recs := []audit.Record{
		{Kind: audit.PolicyLoad, ID: "early", Time: at(0), Policy: digest},
		{Kind: audit.RunStart, ID: "S", Time: at(1), Run: "r", Policy: digest},
		{Kind: audit.Gap, ID: "G", Time: at(2), Data: json.RawMessage(`{"cause":"refused","refused":3}`)},
		{Kind: audit.PolicyLoad, ID: "P", Time: at(3), Policy: digest},
		{Kind: audit.PolicyLoad, ID: "foreign", Time: at(4), Policy: other},
		{Kind: audit.PolicyLoad, ID: "own", Time: at(5), Run: "r", Policy: digest},
		{Kind: audit.Anchor, ID: "anchor", Time: at(6)},
		{Kind: audit.Bypass, ID: "B", Time: at(7), Run: "r", Data: json.RawMessage(`{"udp":3}`)},
		{Kind: audit.Gap, ID: "G2", Time: at(8), Data: json.RawMessage(`{"cause":"refused","refused":1}`)},
	}
	tell := func(recs []audit.Record) (ids []string) {
		_, steps, err := answer.Timeline(t.Context(), opened(t, recs...), "r")
		if err != nil {
			t.Fatal(err)
		}
		for s, err := range steps {
			if err != nil {
				t.Fatal(err)
			}
			if s.Kind == audit.LogClose {
				s.ID = "close"
			}
			ids = append(ids, s.ID)
		}
		return ids
	}
	want := []string{"S", "G", "P", "own", "B", "G2", "close"}
	if diff := cmp.Diff(want, tell(recs)); diff != "" {
		t.Errorf("a run that goes on (-want +got):\n%s", diff)
	}
	recs = append(recs, audit.Record{Kind: audit.RunEnd, ID: "E", Time: at(9), Run: "r"},
		audit.Record{Kind: audit.Gap, ID: "late", Time: at(10), Data: json.RawMessage(`{"cause":"refused","refused":1}`)})
	want[len(want)-1] = "E"
	if diff := cmp.Diff(want, tell(recs)); diff != "" {
		t.Errorf("a run that has ended (-want +got):\n%s", diff)
	}
}

// A done without its admit, as after retention, is not lost.
func TestTimelineKeepsLoneDone(t *testing.T) {
	x := opened(t, audit.Record{Kind: audit.Done, ID: "D", Ref: "gone", Run: "r", Time: at(0)})
	_, steps, err := answer.Timeline(t.Context(), x, "r")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for s := range steps {
		if s.Kind == audit.Done {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d times the done, want once", n)
	}
}

func TestTop(t *testing.T) {
	x := opened(t, stories()...)
	all := answer.Span{From: at(0), Until: at(24 * time.Hour)}
	for _, c := range []struct {
		by   string
		want string
	}{
		{"host", "api.stripe.com 2 0 300; evil.example 1 1 0"},
		{"denied", "evil.example 1 1 0; api.stripe.com 2 0 300"},
		{"bytes", "api.stripe.com 2 0 300; evil.example 1 1 0"},
		{"run", "RUNB 2 1 200; RUNA 1 0 100"},
		{"rule", "charges 2 0 300"},
		{"credential", "stripe 2 0 300"},
		{"reason", "allowed 2 0 300; host_not_allowed 1 1 0"},
	} {
		list, of, err := answer.Top(t.Context(), x, all, c.by, 10)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range list {
			got = append(got, fmt.Sprintf("%s %d %d %d", l.Key, l.Requests, l.Denied, l.Sent))
		}
		if diff := cmp.Diff(c.want, strings.Join(got, "; ")); diff != "" || of != len(list) {
			t.Errorf("Top by %s of %d (-want +got):\n%s", c.by, of, diff)
		}
	}
	if _, _, err := answer.Top(t.Context(), x, all, "host; DROP TABLE records", 1); err == nil {
		t.Error("Top takes any column")
	}
	if list, of, err := answer.Top(t.Context(), x, all, "host", 1); err != nil || len(list) != 1 || of != 2 {
		t.Errorf("the first of Top = %v of %d, %v", list, of, err)
	}
}

func TestNew(t *testing.T) {
	recs := stories()
	other := recs[3]
	other.ID, other.Method, other.Time = "X1", "DELETE", at(3*time.Hour)
	x := opened(t, append(recs, other)...)
	cutoff := at(90 * time.Minute)
	got, err := answer.New(t.Context(), x, answer.Span{From: cutoff, Until: at(24 * time.Hour)}, answer.Span{From: at(0), Until: cutoff})
	if err != nil {
		t.Fatal(err)
	}
	want := []answer.First{
		{Host: "evil.example", Time: at(2*time.Hour + 4*time.Second), ID: "R2", Run: "RUNB", Verdict: "deny", Refused: 1},
		{Host: "api.stripe.com", Method: "DELETE", Time: at(3 * time.Hour), ID: "X1", Run: "RUNA", Verdict: "inspect", Admitted: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("New (-want +got):\n%s", diff)
	}
	none, err := answer.New(t.Context(), x, answer.Span{From: at(10 * time.Hour), Until: at(24 * time.Hour)}, answer.Span{From: at(0), Until: cutoff})
	if err != nil || len(none) != 0 {
		t.Errorf("New in a quiet span = %v, %v", none, err)
	}
}

// TestNewRefusedAtItsAddress: what was refused after it was admitted did not get there.
func TestNewRefusedAtItsAddress(t *testing.T) {
	begin := audit.Record{Kind: audit.Admit, ID: "A9", Run: "RUNA", Verdict: "inspect", Reason: "allowed", Host: "inner.example", Port: 443, Method: "GET", Path: "/", Time: at(2 * time.Hour)}
	end := begin
	end.Kind, end.ID, end.Ref, end.Verdict, end.Reason, end.Time = audit.Done, "D9", "A9", "deny", "private_ip", at(2*time.Hour+time.Second)
	good := begin
	good.ID, good.Time = "A8", at(2*time.Hour+2*time.Second)
	x := opened(t, append(stories(), begin, end, good)...)
	got, err := answer.New(t.Context(), x, answer.Span{From: begin.Time, Until: at(24 * time.Hour)}, answer.Span{From: at(0), Until: begin.Time})
	if err != nil {
		t.Fatal(err)
	}
	got = slices.DeleteFunc(got, func(f answer.First) bool { return f.Host != "inner.example" })
	want := []answer.First{{Host: "inner.example", Time: begin.Time, ID: "A9", Run: "RUNA", Verdict: "inspect", Admitted: 1, Refused: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("New (-want +got):\n%s", diff)
	}
	// Of one that began before the span, nothing begins in it.
	got, err = answer.New(t.Context(), x, answer.Span{From: end.Time, Until: good.Time}, answer.Span{From: at(0), Until: at(time.Second)})
	if err != nil || slices.ContainsFunc(got, func(f answer.First) bool { return f.Host == "inner.example" }) {
		t.Errorf("New after it began = %v, %v", got, err)
	}
}

// TestAskedByHabit: what stub resolvers ask for beside A is no refusal of a host, but
// where it is all that was asked the host is told.
func TestAskedByHabit(t *testing.T) {
	name := audit.Record{Kind: audit.DNS, ID: "Q1", Run: "RUNA", Cell: "c", Verdict: "inspect", Reason: "allowed", Host: "fine.example", QType: "A", Answer: "198.18.0.9", Time: at(2 * time.Hour)}
	beside := name
	beside.ID, beside.QType, beside.Verdict, beside.Reason, beside.Answer = "Q2", "AAAA", "deny", "dns_type_not_allowed", "NODATA"
	alone := beside
	alone.ID, alone.Host = "Q3", "alone.example"
	text := beside
	text.ID, text.Host, text.QType = "Q4", "text.example", "TXT"
	x := opened(t, append(stories(), name, beside, alone, text)...)
	span := answer.Span{From: name.Time, Until: at(24 * time.Hour)}
	list, _, err := answer.Top(t.Context(), x, span, "host", 20)
	if err != nil {
		t.Fatal(err)
	}
	denied, refused := map[string]int64{}, map[string][2]int64{}
	for _, l := range list {
		denied[l.Key] = l.Denied
	}
	firsts, err := answer.New(t.Context(), x, span, answer.Span{From: at(0), Until: name.Time})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range firsts {
		refused[f.Host] = [2]int64{f.Admitted, f.Refused}
	}
	for host, want := range map[string][3]int64{"fine.example": {0, 1, 0}, "alone.example": {0, 0, 1}, "text.example": {1, 0, 1}} {
		if got := [3]int64{denied[host], refused[host][0], refused[host][1]}; got != want {
			t.Errorf("%s: denied, admitted, refused = %v, want %v", host, got, want)
		}
	}
}

func TestDiff(t *testing.T) {
	x := opened(t, stories()...)
	c, err := answer.Diff(t.Context(), x, "RUNA", "RUNB")
	if err != nil {
		t.Fatal(err)
	}
	want := &answer.Comparison{
		A: "RUNA", B: "RUNB", Same: 2,
		Settings: []answer.Setting{{Name: "run.end exit", A: "0", B: "1"}, {Name: "run.start image", A: `"i0"`, B: `"i1"`}},
		Places: []answer.Difference{{
			Place: answer.Place{Kind: audit.Refuse, Host: "evil.example", Port: 443, Method: "POST", Path: "/x", Verdict: "deny", Reason: "host_not_allowed"},
			B:     &answer.Side{Count: 1, ID: "R2"},
		}},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("Diff (-want +got):\n%s", diff)
	}
	same, err := answer.Diff(t.Context(), x, "RUNA", "RUNA")
	if err != nil || len(same.Places)+len(same.Settings) > 0 {
		t.Errorf("Diff of a run and itself = %+v, %v", same, err)
	}
	if _, err := answer.Diff(t.Context(), x, "RUNA", "nobody"); !errors.Is(err, index.ErrNone) {
		t.Errorf("Diff with nobody = %v, want ErrNone", err)
	}
}

func TestHolding(t *testing.T) {
	recs := stories()
	recs[3].Path = "/…[5000 bytes hmac:22]"
	recs[3].Cut = []string{"path"}
	recs[3].Values = "hmac:44 hmac:55"
	x := opened(t, recs...)
	for hashes, want := range map[string]string{
		"hmac:11": "A1 D1 A2 D2", "hmac:22": "A1", "hmac:33": "", "hmac:44": "A1", "hmac:55": "A1", "": "",
		"hmac:33 hmac:55": "A1", "hmac:33 hmac:44 hmac:11": "A1 D1 A2 D2",
	} {
		var got []string
		for r, err := range answer.Holding(t.Context(), x, strings.Split(hashes, " ")...) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("Holding(%q) = %v, want %s", hashes, got, want)
		}
	}
}
