package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"sallyport/control"
	"sallyport/rules/policyfile"
)

// slowness has whoever reads some policy wait at a gate.
type slowness struct {
	reached chan struct{} // told when somebody waits
	open    chan struct{} // closed to let them on
}

func newSlowness() *slowness {
	return &slowness{reached: make(chan struct{}, 100), open: make(chan struct{})}
}

func (s *slowness) wait() {
	select {
	case <-s.open:
	default:
		s.reached <- struct{}{}
		<-s.open
	}
}

// inForce waits until a cell is under another policy than was, and returns it.
func (st *stage) inForce(cell, was string) string {
	st.t.Helper()
	changed := make(chan struct{}, 1)
	defer st.gateway.table.Notify(changed)()
	for {
		if id, ok := st.gateway.table.Identity(cell); ok && id.Policy.Digest() != was {
			return id.Policy.Digest()
		}
		select {
		case <-changed:
		case <-st.t.Context().Done():
			st.t.Fatalf("cell %s stays under %s\n%s", cell, was, st.said.String())
		}
	}
}

// TestASlowPolicyHoldsUpNobodyElse: while one file is read, at up or again at the
// gateway, the policies of other runs come into force, status answers, runs begin
// and end, and approvals are given. When it has been read, it comes into force too.
func TestASlowPolicyHoldsUpNobodyElse(t *testing.T) {
	for where, slowDown := range map[string]func(*stage, *slowness){
		"at up": func(st *stage, s *slowness) {
			st.reloader.load = func(src policySource, c []policyfile.Credential) (*policy, error) {
				if strings.HasSuffix(src.path, "slow.yaml") {
					s.wait()
				}
				return loadPolicy(src, c)
			}
		},
		"at the gateway": func(st *stage, s *slowness) {
			st.gateway.load = func(dir, digest string, c []policyfile.Credential) (*policy, error) {
				p, err := loadPolicyByDigest(dir, digest, c)
				if err == nil && strings.Contains(string(p.text), "slow.example.com") {
					s.wait()
				}
				return p, err
			}
		},
	} {
		t.Run(where, func(t *testing.T) {
			st, slow := newStage(t), newSlowness()
			st.write("slow.yaml", policyText(oneHost))
			st.write("p.yaml", policyText(strings.ReplaceAll(oneHost, "one", "fast")))
			st.attach("aaaaaaaa", "run-a", "slow.yaml")
			st.attach("bbbbbbbb", "run-b", "p.yaml")
			wasSlow, was := st.force("aaaaaaaa"), st.force("bbbbbbbb")
			slowDown(st, slow)
			var wg sync.WaitGroup
			st.write("slow.yaml", policyText(strings.ReplaceAll(oneHost, "one", "slow")))
			wg.Go(func() { st.reloader.reload(t.Context(), "files") })
			<-slow.reached
			st.write("p.yaml", policyText(twoHosts))
			wg.Go(func() { st.reloader.reload(t.Context(), "files") })
			st.inForce("bbbbbbbb", was)
			var status followOut
			st.must(callUp(t.Context(), st.inst, "/v1/status", &status))
			st.attach("cccccccc", "run-c", "p.yaml")
			a, err := st.ask("bbbbbbbb", st.refused("bbbbbbbb", "GET https://docs.example.com/"), "x")
			st.must(err)
			_, err = st.decide(decideIn{ID: a.ID, Approve: true, Seconds: 60})
			st.must(err)
			st.must(callGateway(t.Context(), st.inst, "/v1/detach", cellIn{"cccccccc"}, nil))
			if id, _ := st.gateway.table.Identity("aaaaaaaa"); id.Policy.Digest() != wasSlow {
				t.Error("the slow one is in force before it was read")
			}
			close(slow.open)
			st.inForce("aaaaaaaa", wasSlow)
			wg.Wait()
			if got := st.force("aaaaaaaa"); got == wasSlow {
				t.Error("the slow one is not in force")
			}
		})
	}
}

// TestTheNewestReadingIsInForce: a file that changes while it is read comes into
// force as it is, whichever pass ends last.
func TestTheNewestReadingIsInForce(t *testing.T) {
	st, slow := newStage(t), newSlowness()
	st.write("p.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	was := st.force("aaaaaaaa")
	var first sync.Once
	st.reloader.load = func(src policySource, c []policyfile.Credential) (*policy, error) {
		p, err := loadPolicy(src, c)
		first.Do(slow.wait) // it has read what will be old
		return p, err
	}
	var wg sync.WaitGroup
	wg.Go(func() { st.reloader.reload(t.Context(), "files") })
	<-slow.reached
	for _, more := range []string{"two", "three", "four"} {
		st.write("p.yaml", policyText(strings.ReplaceAll(twoHosts, "two", more)))
		wg.Go(func() { st.reloader.reload(t.Context(), "files") })
	}
	wg.Go(func() {
		if out := st.reloader.reload(t.Context(), "command"); !out.ok() || len(out.Runs) != 1 {
			t.Errorf("whoever asks is answered: %+v", out)
		}
	})
	close(slow.open)
	wg.Wait()
	text, _ := st.gateway.policyText("aaaaaaaa")
	if !strings.Contains(text, "four.example.com") || st.force("aaaaaaaa") == was {
		t.Errorf("in force: %s", text)
	}
}

// TestARunThatEndsWhileItsPolicyIsRead is not brought back, by a reload nor by an
// approval, and neither is one that ends while it is attached.
func TestARunThatEndsWhileItsPolicyIsRead(t *testing.T) {
	st, slow := newStage(t), newSlowness()
	st.write("p.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	creds, err := loadCredentials(st.inst.credentials())
	st.must(err)
	late, err := loadPolicy(policySource{path: st.path("p.yaml")}, creds)
	st.must(err)
	st.gateway.load = func(dir, digest string, c []policyfile.Credential) (*policy, error) {
		slow.wait()
		return loadPolicyByDigest(dir, digest, c)
	}
	st.write("p.yaml", policyText(twoHosts))
	var wg sync.WaitGroup
	wg.Go(func() { st.reloader.reload(context.WithoutCancel(t.Context()), "files") })
	<-slow.reached
	end := func(cell string) {
		st.must(callGateway(t.Context(), st.inst, "/v1/detach", cellIn{cell}, nil))
		st.must(control.Remove(st.inst.cells(), cell))
	}
	end("aaaaaaaa")
	st.gateway.mu.Lock()
	delete(st.gateway.policies, late.digest) // so that it is read
	st.gateway.mu.Unlock()
	wg.Go(func() {
		if f, err := st.tryAttachFrom("bbbbbbbb", "run-b", st.path("p.yaml"), late); err == nil {
			t.Errorf("attached although it was detached: %+v", f)
		}
	})
	<-slow.reached
	end("bbbbbbbb")
	close(slow.open)
	wg.Wait()
	if left := st.gateway.table.Cells(); len(left) != 0 {
		t.Errorf("cells that have ended are attached: %+v", left)
	}
}

// TestAReloadAfterTheEndOfARun is refused, and leaves nothing behind.
func TestAReloadAfterTheEndOfARun(t *testing.T) {
	st := newStage(t)
	st.write("p.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	st.must(callGateway(t.Context(), st.inst, "/v1/detach", cellIn{"aaaaaaaa"}, nil))
	if err := callGateway(t.Context(), st.inst, "/v1/reload", cellIn{"aaaaaaaa"}, nil); err == nil || !strings.Contains(err.Error(), "is not attached") {
		t.Errorf("reload = %v", err)
	}
	st.gateway.mu.Lock()
	defer st.gateway.mu.Unlock()
	if n := len(st.gateway.turns); n != 0 {
		t.Errorf("%d turns are left", n)
	}
}

// TestPoliciesAreSwappedUnderLoad: while links are turned as a ConfigMap's are, runs
// begin and end, and people approve and take back, every run is under what its
// files say in the end, and nothing is left of what was under way.
func TestPoliciesAreSwappedUnderLoad(t *testing.T) {
	st := newStage(t)
	st.writeConfigMap()
	ids := []string{"aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd", "eeeeeeee", "ffffffff"}
	for i, id := range ids {
		st.attach(id, "run-"+id, fmt.Sprintf("data/p%d.yaml", i%3))
	}
	ctx, cancel := context.WithCancel(t.Context())
	hup, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- st.reloader.follow(ctx, hup) }()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 100 {
			tmp := st.path("data.new")
			st.must(os.Symlink(fmt.Sprintf("v%d", i%2), tmp))
			st.must(os.Rename(tmp, st.path("data")))
			if i%10 == 0 {
				hup <- struct{}{}
			}
			if i%25 == 0 {
				st.reloader.reload(ctx, "command")
			}
		}
	})
	wg.Go(func() {
		for i := range 40 {
			host := fmt.Sprintf("h%d.example.com", i)
			a, err := st.ask("aaaaaaaa", st.refused("aaaaaaaa", "GET https://"+host+"/"), "x")
			if err != nil {
				continue
			}
			for _, in := range []decideIn{{Approve: true, Seconds: 60}, {}} {
				in.ID = a.ID
				_, err = st.decide(in)
				st.must(err)
			}
		}
	})
	wg.Go(func() {
		for range 40 {
			st.attach("gggggggg", "run-g", "data/p1.yaml")
			st.must(callGateway(t.Context(), st.inst, "/v1/detach", cellIn{"gggggggg"}, nil))
			unlock := st.lockPolicies()
			st.must(os.Remove(filepath.Join(st.inst.cells(), "gggggggg.json")))
			unlock()
		}
	})
	wg.Wait()
	st.write("v0/sub/inc.yaml", policyText(strings.ReplaceAll(oneHost, "one", "final")))
	st.write("v1/sub/inc.yaml", policyText(strings.ReplaceAll(oneHost, "one", "final")))
	out := st.reloader.reload(ctx, "command")
	if !out.ok() {
		t.Errorf("%+v", out)
	}
	for _, id := range ids {
		text, _ := st.gateway.policyText(id)
		if !strings.Contains(text, "final.example.com") {
			t.Errorf("%s: %s", id, text)
		}
		st.force(id)
	}
	cancel()
	st.must(<-done)
	if len(st.gateway.proofs) != 0 || len(st.gateway.coming) != 0 || len(st.gateway.turns) != len(ids) {
		t.Errorf("left: %d proofs, %d coming, %d turns", len(st.gateway.proofs), len(st.gateway.coming), len(st.gateway.turns))
	}
}

// writeConfigMap writes three policies twice over, and the link data to the first.
func (st *stage) writeConfigMap() {
	st.t.Helper()
	for v := range 2 {
		st.must(os.MkdirAll(st.path(fmt.Sprintf("v%d/sub", v)), 0o755))
		for f := range 3 {
			st.write(fmt.Sprintf("v%d/p%d.yaml", v, f), policyText("include: [{file: sub/inc.yaml}]\n"))
		}
		st.write(fmt.Sprintf("v%d/sub/inc.yaml", v), policyText(strings.ReplaceAll(oneHost, "one", fmt.Sprintf("v%d", v))))
	}
	st.must(os.Symlink("v0", st.path("data")))
}

// TestAPolicyThatWasTakenBackMeanwhile is not put in force by a gateway that took
// longer over it than anybody waited.
func TestAPolicyThatWasTakenBackMeanwhile(t *testing.T) {
	st, slow := newStage(t), newSlowness()
	st.write("p.yaml", policyText(oneHost))
	st.attach("aaaaaaaa", "run-a", "p.yaml")
	was := st.force("aaaaaaaa")
	st.gateway.load = func(dir, digest string, c []policyfile.Credential) (*policy, error) {
		p, err := loadPolicyByDigest(dir, digest, c)
		slow.wait()
		return p, err
	}
	st.write("p.yaml", policyText(twoHosts))
	var out reloadOut
	var wg sync.WaitGroup
	wg.Go(func() { out = st.reloader.reload(t.Context(), "command") })
	<-slow.reached
	f, err := control.Read(st.inst.cells(), "aaaaaaaa")
	st.must(err)
	unlock := st.lockPolicies()
	f.Policy = was
	st.must(f.Write(st.inst.cells(), 0))
	unlock()
	close(slow.open)
	wg.Wait()
	if id, _ := st.gateway.table.Identity("aaaaaaaa"); id.Policy.Digest() != was || out.ok() {
		t.Errorf("in force: %s, %+v", id.Policy.Digest(), out)
	}
	if out := st.reloader.reload(t.Context(), "command"); !out.ok() || st.force("aaaaaaaa") == was {
		t.Errorf("read again: %+v", out)
	}
}
