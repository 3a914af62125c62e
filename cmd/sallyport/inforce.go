package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/control/durable"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/policyfile"
)

// replaced is what a policy.load says of a run that goes on.
type replaced struct {
	Was  string `json:"was"` // digest of the policy before
	File string `json:"file,omitempty"`
}

// digestLoader reads a policy out of a directory: loadPolicyByDigest.
type digestLoader func(dir, digest string, creds []policyfile.Credential) (*policy, error)

// proof is the reading of one policy: everything that it says is checked again,
// which may take seconds. Who else needs the policy meanwhile waits for the same.
type proof struct {
	once   sync.Once
	policy *policy
	err    error
}

// read returns the policy with a digest, from memory or from where the launcher
// put it. It holds nobody up who is after another.
func (g *gateway) read(digest string) (*policy, error) {
	g.mu.Lock()
	if p, ok := g.policies[digest]; ok {
		g.mu.Unlock()
		return p, nil
	}
	r := g.proofs[digest]
	if r == nil {
		r = &proof{}
		g.proofs[digest] = r
	}
	creds := g.creds
	g.mu.Unlock()
	r.once.Do(func() {
		r.policy, r.err = g.load(g.inst.policies(), digest, creds)
		if r.err == nil && r.policy.file.Floor != g.floor {
			r.err = fmt.Errorf("policy %s (%s) does not stand under the floor that is in force here", r.policy.name, digest)
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.proofs[digest] == r {
		delete(g.proofs, digest)
	}
	return r.policy, r.err
}

// turn waits until nobody else changes what a cell is under: a policy is read and
// an approval proved without g.mu, and the last to begin has to be the last in
// force. The caller ends it. Nothing is kept for a cell that has gone: a reload that
// was under way may come after its end.
func (g *gateway) turn(cell string) (end func()) {
	g.mu.Lock()
	t := g.turns[cell]
	if t == nil {
		t = &sync.Mutex{}
		g.turns[cell] = t
	}
	g.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.files[cell] == nil && g.coming[cell] == nil {
			delete(g.turns, cell)
		}
	}
}

// attachFile puts one cell in force, unless it is detached meanwhile.
func (g *gateway) attachFile(ctx context.Context, f *control.CellFile) error {
	g.mu.Lock()
	g.coming[f.Cell] = f
	g.mu.Unlock()
	defer g.turn(f.Cell)()
	p, err := g.read(f.Policy)
	if err != nil {
		return fmt.Errorf("attaching cell %s: %w", f.Cell, err)
	}
	approved := g.approved(p, f.Run)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.coming[f.Cell] != f {
		return fmt.Errorf("attaching cell %s: it was detached meanwhile", f.Cell)
	}
	delete(g.coming, f.Cell)
	if g.policies[f.Policy] == nil { // the first time, it comes into force with that
		if err := g.enforceLocked(ctx, p, &audit.Record{Kind: audit.PolicyLoad, Policy: f.Policy}); err != nil {
			return fmt.Errorf("attaching cell %s: %w", f.Cell, err)
		}
	}
	g.broker.Attach(*f)
	err = g.table.Attach(live.Cell{Identity: gate.Identity{Cell: f.Cell, Run: f.Run, Policy: approved}, Addr: f.Sandbox})
	if err != nil {
		g.broker.Detach(f.Cell)
		return fmt.Errorf("attaching cell %s: %w", f.Cell, err)
	}
	g.files[f.Cell] = f
	return nil
}

// reload puts the policy in force that a cell's file names, in place of the one
// before. What is open is judged again, and cut if it is denied by now; idle
// upstream connections are dropped. On an error the one before stays.
func (g *gateway) reload(ctx context.Context, f *control.CellFile) error {
	defer g.turn(f.Cell)()
	was, ok := g.table.Identity(f.Cell)
	switch {
	case !ok || was.Run != f.Run:
		return notAttached(f)
	case was.Policy.Digest() == f.Policy:
		return nil
	}
	data := replaced{Was: was.Policy.Digest()}
	if f.Origin != nil {
		data.File = f.Origin.File
	}
	raw, err := json.Marshal(data)
	if err != nil {
		return err
	}
	p, err := g.read(f.Policy)
	if err != nil {
		return err
	}
	if names := ungranted(p.rules.Credentials(), f.Grants); len(names) > 0 {
		return fmt.Errorf("it grants %s, for which the sandbox got no placeholder when it started: start a new run", strings.Join(names, ", "))
	}
	approved := g.approved(p, f.Run)
	g.mu.Lock()
	defer g.mu.Unlock()
	if is, ok := g.table.Identity(f.Cell); !ok || is.Run != f.Run {
		return notAttached(f) // any more
	}
	// Who asked may have given up and taken the policy back: the file is the truth.
	if is, err := control.Read(g.inst.cells(), f.Cell); err != nil || is.Policy != f.Policy {
		return errors.Join(fmt.Errorf("the file of cell %s names another policy by now", f.Cell), err)
	}
	if err := g.enforceLocked(ctx, p, &audit.Record{Kind: audit.PolicyLoad, Cell: f.Cell, Run: f.Run, Policy: f.Policy, Data: raw}); err != nil {
		return err
	}
	c := live.Cell{Identity: gate.Identity{Cell: f.Cell, Run: f.Run, Policy: approved}, Addr: f.Sandbox}
	if err := g.table.Attach(c); err != nil {
		return err
	}
	g.dialer.Forget(f.Cell)
	return nil
}

func notAttached(f *control.CellFile) error {
	return fmt.Errorf("cell %s is not attached for run %s", f.Cell, f.Run)
}

// enforceLocked keeps a copy of a policy beside the log, since records name it by
// digest, and writes the record that it comes into force.
func (g *gateway) enforceLocked(ctx context.Context, p *policy, rec *audit.Record) error {
	if err := g.mayCapture(p.rules); err != nil {
		return err
	}
	if err := keepPolicy(g.inst.state("policies"), p); err != nil {
		return err
	}
	if err := g.recent.Append(ctx, rec); err != nil {
		return fmt.Errorf("recording policy %s: %w", p.digest, err)
	}
	g.policies[p.digest] = p
	return nil
}

// keepPolicy stores the text of a policy under its digest, once.
func keepPolicy(dir string, p *policy) error {
	path := control.PolicyPath(dir, p.digest)
	if kept, err := os.ReadFile(path); err == nil && bytes.Equal(kept, p.text) { //nolint:gosec // G703: named by a digest that was checked
		return nil
	}
	if err := durable.Write(path, p.text, 0o640, durable.Writer); err != nil {
		return fmt.Errorf("keeping policy %s: %w", p.digest, err)
	}
	return nil
}

// ungranted returns the credentials that no grant is for.
func ungranted(names []string, grants []control.Grant) (missing []string) {
	for _, name := range names {
		if !slices.ContainsFunc(grants, func(g control.Grant) bool { return g.Credential == name }) {
			missing = append(missing, fmt.Sprintf("%q", name))
		}
	}
	return missing
}

// reloadCredentials reads the credential files anew, for policies that are read
// from now on.
func (g *gateway) reloadCredentials() error {
	creds, err := loadCredentials(g.inst.credentials())
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.creds = creds
	return nil
}
