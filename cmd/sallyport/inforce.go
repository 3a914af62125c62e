package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/rules/gate"
	"sallyport/rules/live"
)

// replaced is what a policy.load says of a run that goes on.
type replaced struct {
	Was  string `json:"was"` // digest of the policy before
	File string `json:"file,omitempty"`
}

// reload puts the policy in force that a cell's file names, in place of the one
// before. What is open is judged again, and cut if it is denied by now; idle
// upstream connections are dropped. On an error the one before stays.
func (g *gateway) reload(ctx context.Context, f *control.CellFile) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	was, ok := g.table.Identity(f.Cell)
	switch {
	case !ok || was.Run != f.Run:
		return fmt.Errorf("cell %s is not attached for run %s", f.Cell, f.Run)
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
	p, err := g.readLocked(f.Policy)
	if err != nil {
		return err
	}
	if names := ungranted(p.rules.Credentials(), f.Grants); len(names) > 0 {
		return fmt.Errorf("it grants %s, for which the sandbox got no placeholder when it started: start a new run", strings.Join(names, ", "))
	}
	if err := g.enforceLocked(ctx, p, &audit.Record{Kind: audit.PolicyLoad, Cell: f.Cell, Run: f.Run, Policy: f.Policy, Data: raw}); err != nil {
		return err
	}
	c := live.Cell{Identity: gate.Identity{Cell: f.Cell, Run: f.Run, Policy: g.approvedLocked(p, f.Run)}, Addr: f.Sandbox}
	if err := g.table.Attach(c); err != nil {
		return err
	}
	g.dialer.Forget(f.Cell)
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
