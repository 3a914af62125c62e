package gate_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/limit/ledger"
	"sallyport/rules/target"
)

// log is a Recorder that keeps the real one's contract and fails on cue: before
// the record is kept, or after, when only the answer is lost.
type log struct {
	mu          sync.Mutex
	records     []audit.Record
	failBefore  bool
	failAfter   bool
	needContext bool // fail like a log that gives up with its caller
}

var errDisk = errors.New("no space left")

func (l *log) Append(ctx context.Context, r *audit.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.needContext && ctx.Err() != nil {
		return ctx.Err()
	}
	if l.failBefore {
		return errDisk
	}
	l.records = append(l.records, *r)
	if l.failAfter {
		return errDisk
	}
	return nil
}

func (l *log) all() []audit.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]audit.Record(nil), l.records...)
}

// house is a gate for one cell, whose policy and clock a test may change.
type house struct {
	*gate.Gate
	log *log
	id  gate.Identity
	now time.Time
}

func newHouse(tb testing.TB) *house {
	tb.Helper()
	h := &house{log: &log{}, now: time.Unix(1_700_000_000, 0)}
	h.id = gate.Identity{Cell: "cell", Run: "run", Policy: policy(tb)}
	h.record(h.log)
	return h
}

// record makes the house's gate anew, with another recorder.
func (h *house) record(to gate.Recorder) { h.recordAside(to, nil) }

// recordAside is record with a ledger.
func (h *house) recordAside(to gate.Recorder, aside *ledger.Ledger) {
	g, err := gate.New(gate.Config{
		Identity: func(cell string) (gate.Identity, bool) { return h.id, cell == h.id.Cell },
		Recorder: to,
		Now:      func() time.Time { return h.now },
		Hash:     hashed,
		Ledger:   aside,
	})
	if err != nil {
		panic(err)
	}
	h.Gate = g
}

func policy(tb testing.TB, extra ...rules.Rule) *rules.Policy {
	tb.Helper()
	at := func(s string) []rules.HostPattern {
		h, err := target.ParseHost(s)
		if err != nil {
			tb.Fatal(err)
		}
		return []rules.HostPattern{{Host: h}}
	}
	allow := rules.Rule{Action: rules.AllowAction, Ports: []uint16{443}, Where: "p.yaml:1"}
	api, raw, pass, key := allow, allow, allow, allow
	api.ID, api.Hosts, api.Methods = "api", at("api.test"), []string{"GET"}
	raw.ID, raw.Hosts, raw.Raw = "raw", at("raw.test"), true
	pass.ID, pass.Hosts, pass.TLS = "pass", at("pass.test"), rules.PassthroughTLS
	key.ID, key.Hosts, key.Credential = "key", at("key.test"), "secret"
	p, err := rules.Compile(rules.Source{Digest: "sha256:aa", Rules: append(extra, api, raw, pass, key)})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func request(tb testing.TB, q rules.Question, where string) rules.Request {
	tb.Helper()
	e, err := target.ParseAuthority(where, 443)
	if err != nil {
		tb.Fatal(err)
	}
	r := rules.Request{Question: q, Cell: "cell", Endpoint: e}
	switch q {
	case rules.Hello:
		r.Protocol = rules.TLS
	case rules.Fetch:
		r.Method, r.Secure, r.Query = "GET", true, "token=abc"
		if r.Path, err = target.ParsePath("/v1"); err != nil {
			tb.Fatal(err)
		}
	case rules.Resolve:
		r.Endpoint.Port, r.Type = 0, 1
	default:
	}
	return r
}

// kinds tells the records in short: kind, reason, verdict, rule.
func (l *log) kinds() []string {
	var out []string
	for _, r := range l.all() {
		out = append(out, strings.Join([]string{string(r.Kind), r.Reason, r.Verdict, r.Rule}, " "))
	}
	return out
}

func wantRecords(t *testing.T, h *house, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, h.log.kinds()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func wantDenied(t *testing.T, err error, reason rules.Reason) *gate.DeniedError {
	t.Helper()
	var d *gate.DeniedError
	if !errors.As(err, &d) {
		t.Fatalf("error is %v, want a refusal for %s", err, reason)
	}
	if d.Reason != reason || d.Decision.Verdict != rules.Deny || d.Decision.Reason != reason || d.Decision.Explain || d.ID == "" && reason != rules.NoPolicy {
		t.Errorf("refusal %+v, want %s", d, reason)
	}
	return d
}
