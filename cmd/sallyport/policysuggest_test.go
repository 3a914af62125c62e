package main

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// deniedRecord is something that was refused, as a sandbox may have asked for it.
func deniedRecord(t *rapid.T, n int) audit.Record {
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	rec := audit.Record{
		Time: time.Unix(1_790_000_000, 0), ID: fmt.Sprintf("R%d", n), Kind: audit.Refuse, Run: "R", Verdict: "deny",
		Reason: pick("reason", "host_not_allowed", "method_not_allowed", "path_not_allowed", "port_not_allowed", "denied_by_rule"),
		Host:   pick("host", "a.test", "api.example.com", "xn--bcher-kva.example", "8.8.8.8", "10.0.0.1", "2001:4860::1", "sallyport.internal", "_x.example.com"),
		Port:   rapid.SampledFrom([]uint16{443, 443, 443, 80, 8080, 22, 23, 25, 5432}).Draw(t, "port"),
	}
	if rec.Reason == "denied_by_rule" {
		rec.Rule, rec.Where = "no", "p.yaml:5"
	}
	if pick("question", "fetch", "fetch", "fetch", "hello") == "hello" {
		rec.Question, rec.Proto = "hello", "opaque"
		return rec
	}
	rec.Question = "fetch"
	rec.Method = pick("method", "GET", "POST", "DELETE", "TRACE", "get", "*", "M-SEARCH")
	segment := rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "v1", "1", "2", "17", "12345", "a%2fb", "a%2Fb", "A%2Db", "a*b", "**", "%2A", ".", "..", "a;b", "a:b", "@x", "a=b&c", "'q'", "2026-01-31",
			"123e4567-e89b-12d3-a456-426614174000", "0a1b2c3d4e5f", "ch_1aB2cD3", "%C3%BC", "%00", "%22", "a+b", "{x}", "~u", strings.Repeat("l", 300),
		}),
		rapid.StringMatching(`[!-~]{1,4}`),
	)
	rec.Path = "/" + strings.Join(rapid.SliceOfN(segment, 0, 4).Draw(t, "path"), "/")
	return rec
}

// TestWhatIsSuggestedHolds: of any log, what is suggested loads, and its tests pass; it
// admits every request that it says it is for, and each of the log is either that or
// told; it breaks no statement under never of the policy that it is for; and strict
// lint refuses every rule of it.
func TestWhatIsSuggestedHolds(t *testing.T) {
	const guarded = "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\nrules: [{id: v2, reason: x, allow: {host: a.test, paths: [/v2]}}]\n" +
		"never: [{methods: [DELETE]}, {hosts: [api.example.com], paths: [\"/v1/**\"]}]\n"
	admitted, left := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var recs []audit.Record
		for i := range rapid.IntRange(1, 12).Draw(t, "records") {
			recs = append(recs, deniedRecord(t, i))
		}
		s := &suggestion{Log: "log", Rules: []suggestedRule{}, Left: []leftOut{}, at: map[string]int{}}
		if rapid.Bool().Draw(t, "guarded") {
			p, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(guarded)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s.policy = p
		}
		all := func(yield func(audit.Record, error) bool) {
			for _, r := range recs {
				if !yield(r, nil) {
					return
				}
			}
		}
		if err := s.read(iter.Seq2[audit.Record, error](all)); err != nil {
			t.Fatal(err)
		}
		if err := s.suggest(); err != nil {
			t.Fatal(err)
		}
		p, err := policyfile.ReadPolicy(policyfile.Input{Name: "suggested.yaml", Data: []byte(s.Policy)}, nil)
		if err != nil {
			t.Fatalf("it does not load: %v\n%s", err, s.Policy)
		}
		count := s.Unreadable + s.Allowed
		for _, r := range s.Rules {
			count += r.Count
		}
		for _, l := range s.Left {
			count += l.Count
		}
		if count != len(recs) {
			t.Fatalf("of %d records %d are told of\n%s", len(recs), count, s.Policy)
		}
		admits, forbidden := 0, 0
		for i := range recs {
			req, err := requestOf(&recs[i])
			if err != nil || recs[i].Host == rules.Reserved || decideAgain(p.Policy, req).Verdict == rules.Deny {
				continue // no rule is about the gateway's own name
			}
			admits++
			if s.policy != nil && (req.Method == "DELETE" || recs[i].Host == "api.example.com" && strings.HasPrefix(req.Path.String(), "/v1/")) {
				forbidden++
			}
		}
		if forbidden > 0 {
			t.Fatalf("%d requests are admitted that must never be\n%s", forbidden, s.Policy)
		}
		for _, r := range s.Rules {
			admits -= r.Count
		}
		if admits < 0 {
			t.Fatalf("%d requests that it is for are not admitted\n%s", -admits, s.Policy)
		}
		strict(t, p, len(s.Rules))
		admitted, left = admitted+len(s.Rules), left+len(s.Left)
	})
	if admitted == 0 || left == 0 {
		t.Errorf("%d rules, %d left out: the test asks nothing", admitted, left)
	}
}

// TestNeverKnowsEverySegment: also that of an equals sign, with which the engine marks
// literals. Its twin is a path that the statement is not about.
func TestNeverKnowsEverySegment(t *testing.T) {
	const text = "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\nrules: [{id: r, reason: x, allow: {host: a.test, paths: [%s]}}]\n" +
		"never: [{hosts: [a.test], paths: [\"/v1/**\"]}]\n"
	for path, bad := range map[string]bool{"/v1/=": true, "/v1/a": true, "/v2/=": false} {
		_, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: fmt.Appendf(nil, text, path)}, nil)
		if bad != (err != nil && strings.Contains(err.Error(), "https://a.test"+path)) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// strict holds a suggestion against strict lint, which has to refuse each of its rules.
func strict(t *rapid.T, p *policyfile.PolicyFile, n int) {
	found, _ := errors.AsType[policyfile.Errors](p.Strict(1_790_000_000))
	found = slices.DeleteFunc(found, func(e policyfile.Error) bool { return e.ID != "reason-unwritten" })
	if len(found) != n {
		t.Fatalf("%d of %d reasons are to be written: %v", len(found), n, found)
	}
}

// TestRequestRefusedForTwoReasonsHasOneRule, also where a rule that is for more than it
// does not fit and is taken apart: the second would say nothing.
func TestRequestRefusedForTwoReasonsHasOneRule(t *testing.T) {
	p, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte("apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: p}\n" +
		"rules: [{id: v2, reason: x, allow: {host: a.test, paths: [/v2]}}]\nnever: [{methods: [DELETE]}]\n")}, nil)
	must(t, err)
	s := &suggestion{Log: "log", Rules: []suggestedRule{}, Left: []leftOut{}, at: map[string]int{}, policy: p}
	must(t, s.read(func(yield func(audit.Record, error) bool) {
		for n, method := range []string{"GET", "GET", "DELETE", "DELETE"} {
			rec := audit.Record{
				Time: time.Unix(1_790_000_000, 0), ID: fmt.Sprintf("R%d", n), Kind: audit.Refuse, Run: "R", Verdict: "deny",
				Reason: []string{"host_not_allowed", "method_not_allowed"}[n%2], Host: "a.test", Port: 443, Question: "fetch", Method: method, Path: "/",
			}
			if !yield(rec, nil) {
				return
			}
		}
	}))
	must(t, s.suggest())
	if _, err := policyfile.ReadPolicy(policyfile.Input{Name: "suggested.yaml", Data: []byte(s.Policy)}, nil); err != nil || len(s.Rules) != 1 || s.Rules[0].Count != 2 || len(s.Left) != 2 {
		t.Errorf("it does not load: %v\n%s", err, s.Policy)
	}
}
