// Command biglog writes a log as large as a busy year's, for measuring how long
// it takes to index it and to answer out of it. It invents runs, hosts and
// times; the log itself is written by package audit, and verifies.
//
//	biglog -dir DIR -n 10000000
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"sallyport/audit"
)

func main() {
	dir := flag.String("dir", "", "directory for log/, key/, policies/")
	n := flag.Int("n", 1_000_000, "how many records, about")
	run := flag.Int("run", 2000, "how many records a run has")
	flag.Parse()
	if err := write(context.Background(), *dir, *n, *run); err != nil {
		fmt.Fprintln(os.Stderr, "biglog:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, dir string, n, run int) error {
	digest, err := writePolicy(filepath.Join(dir, "policies"))
	if err != nil {
		return err
	}
	w := &world{digest: digest, rand: rand.New(rand.NewPCG(1, 2)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	l, err := audit.Open(audit.Config{
		Dir: filepath.Join(dir, "log"), KeyFile: filepath.Join(dir, "key", "key"), Interval: time.Second,
		Now: func() time.Time {
			if w.written > 0 {
				return time.Now() // of the log's own doings: its waits for signatures are true ones
			}
			return w.now
		},
	})
	if err != nil {
		return err
	}
	w.add = func(r audit.Record) error { return l.Append(ctx, &r) }
	// They spread over half a year.
	w.step = 180 * 24 * time.Hour / time.Duration(n)
	if err := w.add(audit.Record{Kind: audit.PolicyLoad, Policy: w.digest}); err != nil {
		return err
	}
	for w.written < n {
		if err := w.run(min(run, n-w.written)); err != nil {
			return err
		}
	}
	return l.Close()
}

// services is how many services hosts are of.
const services = 1000

// writePolicy writes the policy that lets the runs' requests through, and returns its
// digest.
func writePolicy(dir string) (string, error) {
	var b strings.Builder
	b.WriteString("apiVersion: sallyport/v1\nkind: EffectivePolicy\nmetadata:\n  name: \"payments\"\n  owner: \"bench\"\nrules:\n")
	for api := range 4 {
		fmt.Fprintf(&b, "  - id: \"rule-%d\"\n    origin: \"payments.yaml:12\"\n    reason: \"an api\"\n    allow:\n      hosts:\n", api)
		hosts := make([]string, services)
		for service := range hosts {
			hosts[service] = fmt.Sprintf("        - \"api-%d.service-%d.example\"\n", api, service)
		}
		slices.Sort(hosts) // as an effective policy is written
		b.WriteString(strings.Join(hosts, ""))
		b.WriteString("      ports:\n        - 443\n      methods:\n        - \"GET\"\n        - \"POST\"\n      paths:\n        - \"/v1/objects/*\"\n    log: \"metadata\"\n")
	}
	sum := sha256.Sum256([]byte(b.String()))
	name := hex.EncodeToString(sum[:])
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	return "sha256:" + name, os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(b.String()), 0o640)
}

// world is what the log tells of.
type world struct {
	digest  string // of the policy
	rand    *rand.Rand
	now     time.Time
	step    time.Duration
	written int
	add     func(audit.Record) error
}

func (w *world) append(r audit.Record) error {
	w.now = w.now.Add(w.step)
	r.Time = w.now
	if r.ID == "" {
		r.ID = w.id()
	}
	w.written++
	return w.add(r)
}

func (w *world) id() string {
	var raw ulid.ULID
	if err := raw.SetTime(ulid.Timestamp(w.now)); err != nil {
		panic(err)
	}
	for i := 6; i < len(raw); i++ {
		raw[i] = byte(w.rand.Uint32())
	}
	return raw.String()
}

func (w *world) hash() string {
	return fmt.Sprintf("hmac:%016x%016x", w.rand.Uint64(), w.rand.Uint64())
}

// run writes one run: names, requests with their outcome, and some refusals.
func (w *world) run(n int) error {
	run := w.id()
	base := audit.Record{Run: run, Cell: "cell-" + run[20:], Policy: w.digest}
	begin := base
	begin.Kind = audit.RunStart
	begin.Data = json.RawMessage(fmt.Sprintf(`{"image":"sallyport/sandbox:%d","policy_name":"payments","user":"1000"}`, w.rand.IntN(40)))
	if err := w.append(begin); err != nil {
		return err
	}
	hosts := make([]string, 3+w.rand.IntN(8))
	for i := range hosts {
		hosts[i] = fmt.Sprintf("api-%d.service-%d.example", w.rand.IntN(4), min(int(w.rand.ExpFloat64()*40), services-1))
		name := base
		name.Kind, name.Verdict, name.Reason, name.Question, name.Listener = audit.DNS, "inspect", "allowed", "resolve", "dns"
		name.Host, name.QType, name.Answer = hosts[i], "A", fmt.Sprintf("198.18.0.%d", i+1)
		if err := w.append(name); err != nil {
			return err
		}
	}
	for i := 0; i < n-len(hosts)-2; i += 2 {
		if err := w.request(base, hosts[w.rand.IntN(len(hosts))]); err != nil {
			return err
		}
	}
	end := base
	end.Kind, end.Data = audit.RunEnd, json.RawMessage(`{"cause":"finished","exit":0,"denied":1}`)
	return w.append(end)
}

func (w *world) request(base audit.Record, host string) error {
	r := base
	r.Kind, r.Verdict, r.Reason, r.Rule, r.Where, r.Scope = audit.Admit, "inspect", "allowed", "rule-"+host[4:5], "payments.yaml:12", "policy"
	r.Listener, r.Client, r.Question, r.Proto = "transparent", fmt.Sprintf("10.213.0.2:%d", 32768+w.rand.IntN(28000)), "fetch", "h1"
	r.Host, r.Port, r.Method = host, 443, []string{"GET", "GET", "GET", "POST"}[w.rand.IntN(4)]
	r.Path = fmt.Sprintf("/v1/objects/%08x", w.rand.Uint32N(1<<20))
	r.ID = w.id()
	if w.rand.IntN(3) == 0 {
		r.Query, r.Values = w.hash(), w.hash()
	}
	if w.rand.IntN(50) == 0 {
		r.Kind, r.Verdict, r.Reason, r.Rule, r.Where, r.Host = audit.Refuse, "deny", "host_not_allowed", "", "", fmt.Sprintf("host-%d.example", w.rand.IntN(5000))
		return w.append(r)
	}
	if r.Method == "POST" {
		r.Credential = "service-key"
	}
	if err := w.append(r); err != nil {
		return err
	}
	done := r
	done.Kind, done.Ref, done.ID, done.Values = audit.Done, r.ID, "", ""
	done.Addr, done.Status = "203.0.113.9:443", []int{200, 200, 200, 404, 500}[w.rand.IntN(5)]
	done.Sent, done.Received, done.Micros = int64(w.rand.IntN(4000)), int64(w.rand.IntN(60000)), int64(w.rand.IntN(400_000))
	return w.append(done)
}
