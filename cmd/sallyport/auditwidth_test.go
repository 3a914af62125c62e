package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sallyport/audit"
)

// writeLongLog makes a log of two runs in which everything is as long as a
// sandbox, or an author of rules, can make it.
func writeLongLog(t *testing.T, dir string) {
	t.Helper()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(dir, "log"), KeyFile: filepath.Join(dir, "key", "key"), Now: func() time.Time { return now }, Interval: time.Hour,
	})
	must(t, err)
	long := strings.Repeat("w", 150)
	host := strings.Repeat(strings.Repeat("h", 60)+".", 4) + "example"
	add := func(id string, r audit.Record) {
		t.Helper()
		now = now.Add(time.Second)
		r.Time, r.ID, r.Rule, r.Where, r.Credential = now, id, long, long+".yaml:123456", long
		must(t, l.Append(t.Context(), &r))
	}
	for _, run := range []string{"01KG929BT0TE78HSNTG4WNE1AC", "01KG929BT0TE78HSNTG4WNE1BC"} {
		r := audit.Record{Run: run, Cell: long, Policy: "sha256:" + strings.Repeat("ab", 32), Client: "10.213.0.2:41000"}
		r.Kind, r.Data = audit.RunStart, json.RawMessage(`{"image":"`+long+run+`","policy_name":"`+long+`"}`)
		add(run, r)
		r.Kind, r.Data, r.Host, r.QType, r.Answer, r.Verdict, r.Reason = audit.DNS, nil, run[20:]+"."+host, "A", strings.Repeat("198.18.0.1 ", 50), "deny", "host_not_allowed"
		add(run[:25]+"D", r)
		r.Kind, r.QType, r.Answer, r.Verdict, r.Reason = audit.Admit, "", "", "inspect", "allowed"
		r.Port, r.Method, r.Path, r.Query = 44300, strings.Repeat("M", 100), "/"+strings.Repeat("p/", 1500), l.Hash("q")
		add(run[:25]+"E", r)
		r.Kind, r.Ref, r.Addr, r.Status, r.Sent, r.Received, r.Micros, r.Error = audit.Done, run[:25]+"E", "[2001:db8:1111:2222:3333:4444:5555:6666]:44300", 200, 1<<40, 1<<42, 1<<50, long+long
		add(run[:25]+"F", r)
		r.Kind, r.Ref, r.Verdict, r.Reason = audit.Refuse, "", "deny", "placeholder_leak"
		add(run[:25]+"G", r)
		add(run[:25]+"H", audit.Record{Kind: audit.Gap, Error: long + " " + long})
		add(run[:25]+"I", audit.Record{Kind: audit.Bypass, Run: run, Data: json.RawMessage(`{"x":"` + long + `"}`)})
		now = now.Add(24 * time.Hour)
	}
	must(t, l.Close())
}

// Whatever stands in the log, what people read fits a terminal, holds nothing
// that it could obey, and is there for programs too: tail shows what query does,
// and body and retain have no table.
func TestEveryAuditAnswerFitsAHundredColumns(t *testing.T) {
	dir := t.TempDir()
	writeLongLog(t, dir)
	t.Chdir(dir)
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	const a, b = "01KG929BT0TE78HSNTG4WNE1AC", "01KG929BT0TE78HSNTG4WNE1BC"
	public, err := os.ReadFile("log/log.pub")
	must(t, err)
	must(t, os.WriteFile("audit.pub", public, 0o600))
	tests := map[string][][]string{
		"query":     {{}, {"--run", a}},
		"show":      {{a[:25] + "E"}, {a[:25] + "G"}, {a}, {a[:25] + "D"}},
		"timeline":  {{a}},
		"top":       {{}, {"--by", "rule"}, {"--by", "run"}, {"--by", "credential"}, {"--by", "reason"}, {"--by", "bytes"}},
		"new":       {{"--since", "2026-02-01"}, {"--since", "2026-01-31"}},
		"diff":      {{a, b}},
		"anomalies": {{"--since", "2026-02-01"}, {"--since", "2026-01-31"}},
		"hash":      {{"--key", "key/key", "q"}},
		"verify":    {{"--key", "audit.pub"}},
		"index":     {{"--index", "i.db"}},
		"prove":     nil, // a proof is for a program; the script of it has -o json
		"export":    nil, // likewise
		"why":       nil, // the policy's own words: the script of it has -o json
		"tail":      nil, "body": nil, "retain": nil,
	}
	for _, c := range newAudit().Commands() {
		calls, ok := tests[c.Name()]
		if !ok {
			t.Errorf("audit %s is not tried here", c.Name())
		}
		if c.Flags().Lookup("output") == nil {
			t.Errorf("audit %s has no -o json", c.Name())
		}
		for _, args := range calls {
			args = append([]string{"audit", c.Name(), "--dir", "log"}, args...)
			fits(t, args)
			isJSON(t, append(args, "-o", "json"))
		}
	}
}

// TestDataEndsLinesBehindMembers: what a record says of a body is not cut in a number.
func TestDataEndsLinesBehindMembers(t *testing.T) {
	for in, want := range map[string]string{
		`{"sha256":"ab","bytes":200000,"kept":65536,"cut":true}`: `{"sha256":"ab", "bytes":200000, "kept":65536, "cut":true}`,
		`{"a":"x,\\\"y,z\\","b":[1,2]}`:                          `{"a":"x,\\\"y,z\\", "b":[1, 2]}`,
		`7`:                                                      `7`,
	} {
		if got := breakable(json.RawMessage(in)); got != want {
			t.Errorf("breakable(%s) = %s, want %s", in, got, want)
		}
	}
}

func fits(t *testing.T, args []string) {
	t.Helper()
	fitsWith(t, 0, args)
}

// fitsWith is fits of a command that ends with another exit code.
func fitsWith(t *testing.T, want int, args []string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), args, strings.NewReader(""), &out, &errs); code != want {
		t.Errorf("%s: exit code %d: %s", args, code, &errs)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%s: a line of %d columns: %s", args, n, line)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("%s colours what it prints, though nothing is a terminal", args)
	}
}

func isJSON(t *testing.T, args []string) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(""), &out, &errs)
	values := 0
	for dec := json.NewDecoder(&out); ; values++ {
		var v any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Errorf("%s: no JSON: %v", args, err)
			break
		}
	}
	if code != 0 || values == 0 {
		t.Errorf("%s: exit code %d and %d values: %s", args, code, values, &errs)
	}
}
