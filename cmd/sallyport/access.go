package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/control"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/live"
	"sallyport/rules/target"
)

// What the commands ask about access.
type (
	accessIn struct{ Run string } // "" for all
	decideIn struct {
		ID      string
		Approve bool
		By      string
		Seconds int64 // how long an approval holds
		Methods []string
		Paths   []string
		Note    string
	}
	// decidedOut is data of an access.decided.
	decidedOut struct {
		State   live.AskState `json:"state"`
		By      string        `json:"by"`
		Until   time.Time     `json:"until,omitzero"`
		Methods []string      `json:"methods,omitempty"`
		Paths   []string      `json:"paths,omitempty"`
		Note    string        `json:"note,omitempty"`
	}
	// askedOut is data of an access.asked.
	askedOut struct {
		Why string `json:"why"`
	}
)

// askAccess takes a sandbox's request for what it was refused, and records it.
func (g *gateway) askAccess(ctx context.Context, cell, request, why string) (proxy.Asked, error) {
	id, ok := g.table.Identity(cell)
	if !ok {
		return proxy.Asked{}, errors.New("no such cell")
	}
	var d *proxy.Denied
	list, _ := g.recent.recent(id.Run, maxDenials)
	for i := range list {
		if list[i].ID == request {
			d = &list[i]
		}
	}
	switch {
	case d == nil:
		return proxy.Asked{}, &proxy.AskError{Status: http.StatusNotFound, Text: "None of the last refusals of this sandbox has that id: it is in the header Sallyport-Request."}
	case !rules.Reason(d.Reason).Askable() || d.Method == "" || d.Path == "":
		return proxy.Asked{}, &proxy.AskError{Status: http.StatusForbidden, Text: "No approval can change this refusal (" + d.Reason + "): it is not for want of a rule. Do not try it in another way."}
	}
	a := live.Ask{
		Cell: cell, Run: id.Run, Record: d.ID, Reason: d.Reason, Method: d.Method, Host: d.Host, Port: d.Port, Path: d.Path, Why: why, State: live.Asked,
	}
	if same, ok := g.access.Same(&a); ok {
		return askedBy(&same), nil
	}
	if err := g.access.Room(id.Run); err != nil {
		return proxy.Asked{}, &proxy.AskError{Status: http.StatusTooManyRequests, Text: err.Error()}
	}
	data, err := json.Marshal(askedOut{why})
	if err != nil {
		return proxy.Asked{}, err
	}
	rec := audit.Record{
		Kind: audit.AccessAsked, Ref: d.ID, Cell: cell, Run: id.Run, Policy: id.Policy.Digest(), Reason: d.Reason,
		Method: d.Method, Host: d.Host, Port: d.Port, Path: d.Path, Data: data,
	}
	if err := g.recent.Append(ctx, &rec); err != nil {
		return proxy.Asked{}, err
	}
	a.ID, a.Time = rec.ID, rec.Time
	g.access.Put(&a)
	g.log.Info("a sandbox asks for access", "id", a.ID, "cell", cell, "request", what(*d))
	return askedBy(&a), nil
}

func askedBy(a *live.Ask) proxy.Asked {
	return proxy.Asked{ID: a.ID, Request: a.Record, State: string(a.State), Note: a.Note, Until: a.Until}
}

// askedFor lists what a cell asked for.
func (g *gateway) askedFor(cell string) (out []proxy.Asked) {
	id, ok := g.table.Identity(cell)
	if !ok || id.Run == "" {
		return nil
	}
	list := g.access.List(id.Run)
	for i := range list {
		out = append(out, askedBy(&list[i]))
	}
	return out
}

// listAccess lists what was asked for by a run that goes on, or by all.
func (g *gateway) listAccess(_ context.Context, in accessIn) ([]live.Ask, error) {
	if in.Run != "" && !slices.ContainsFunc(g.table.Cells(), func(c live.Cell) bool { return c.Run == in.Run }) {
		return nil, conflict("no running sandbox has the run %q", in.Run)
	}
	return g.access.List(in.Run), nil
}

func conflict(format string, args ...any) error {
	return &control.Error{Status: http.StatusConflict, Text: fmt.Sprintf(format, args...)}
}

// decideAccess records what a person decided, and puts it in force. An approval
// can be taken back by denying it.
func (g *gateway) decideAccess(ctx context.Context, in decideIn) (live.Ask, error) {
	a, ok := g.access.Get(in.ID)
	if !ok {
		return a, conflict("no running sandbox asked for access under the id %q", in.ID)
	}
	defer g.turn(a.Cell)()
	if a, ok = g.access.Get(in.ID); !ok { // as it is in this turn
		return a, conflict("the run has ended")
	}
	p, err := g.policyOf(&a)
	if err != nil {
		return a, err
	}
	if a.State == live.Denied || a.State == live.Approved && in.Approve {
		return a, conflict("%s is %s already, by %s", a.ID, a.State, a.By)
	}
	a.State, a.By, a.Note, a.Until, a.Methods, a.Paths = live.Denied, in.By, in.Note, time.Time{}, nil, nil
	rule := ""
	if in.Approve {
		if rule, err = g.approve(p, &a, &in); err != nil {
			return a, err
		}
	}
	data, err := json.Marshal(decidedOut{a.State, a.By, a.Until, a.Methods, a.Paths, a.Note})
	if err != nil {
		return a, err
	}
	rec := audit.Record{
		Kind: audit.AccessDecided, Ref: a.ID, Cell: a.Cell, Run: a.Run, Policy: p.digest, Rule: rule, Scope: rules.ApprovalScope.String(),
		Method: a.Method, Host: a.Host, Port: a.Port, Path: a.Path, Data: data,
	}
	if err := g.keepDecision(ctx, &a, &rec); err != nil {
		return a, err
	}
	return a, g.judgeAgain(a.Cell)
}

// policyOf returns the policy that a request for access is decided by: that of
// its run, as long as that goes on.
func (g *gateway) policyOf(a *live.Ask) (*policy, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id, ok := g.table.Identity(a.Cell)
	p := g.policies[id.Policy.Digest()]
	if !ok || id.Run != a.Run || p == nil {
		return nil, conflict("the run %s has ended", a.Run)
	}
	return p, nil
}

// keepDecision records a decision, unless its run has ended meanwhile: nothing
// that was approved outlives it.
func (g *gateway) keepDecision(ctx context.Context, a *live.Ask, rec *audit.Record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id, ok := g.table.Identity(a.Cell); !ok || id.Run != a.Run {
		return conflict("the run %s has ended", a.Run)
	}
	if err := g.recent.Append(ctx, rec); err != nil {
		return fmt.Errorf("recording the decision: %w", err)
	}
	a.Decided = rec.Time
	g.access.Put(a)
	return nil
}

// approve makes an approval of a request, and returns the id of its rule.
func (g *gateway) approve(p *policy, a *live.Ask, in *decideIn) (rule string, err error) {
	now := time.Now().UTC()
	held := time.Duration(in.Seconds) * time.Second
	if held <= 0 || held > live.MaxApproval {
		return "", conflict("an approval holds for up to %v", live.MaxApproval)
	}
	a.State, a.Until, a.Methods, a.Paths = live.Approved, now.Add(held).Truncate(time.Second), in.Methods, in.Paths
	r, err := g.approvable(p, a, now)
	return r.ID, err
}

// approvable makes sure that an approval does what it is for: it contradicts no
// rule, breaks no statement under never, and lets through what was refused.
func (g *gateway) approvable(p *policy, a *live.Ask, now time.Time) (rules.Rule, error) {
	r, err := a.Rule()
	if err != nil {
		return r, conflict("%v", err)
	}
	q, err := p.file.With(append(g.access.Rules(a.Run, now), r))
	if err != nil {
		return r, conflict("it cannot be approved: %v", err)
	}
	path, err := target.ParsePath(a.Path)
	if err != nil {
		return r, conflict("%v", err)
	}
	if !slices.Contains(r.Methods, a.Method) || !slices.ContainsFunc(r.Paths, func(x rules.PathPattern) bool { return x.Match(path) }) {
		return r, conflict("%s %s, which was asked for, is not among the methods and paths that you name", a.Method, a.Path)
	}
	trial := approval{q: q, rule: &r, now: now, work: &rules.Work{Left: approvalWork}}
	return r, trial.judge(a.Method, path)
}

// approved returns a policy with what was approved for a run. An approval that
// contradicts a policy that was read since is left out.
func (g *gateway) approved(p *policy, run string) *rules.Policy {
	var fit []rules.Rule
	q := p.rules
	for _, r := range g.access.Rules(run, time.Now()) {
		with, err := p.file.With(append(fit, r))
		if err != nil {
			g.log.Warn("an approval does not go with the policy in force", "run", run, "rule", r.ID, "cause", err)
			continue
		}
		fit, q = append(fit, r), with
	}
	return q
}

// judgeAgain puts what is approved for a cell in force, and has everything that
// is open judged again. The caller has the cell's turn.
func (g *gateway) judgeAgain(cell string) error {
	id, ok := g.table.Identity(cell)
	if !ok {
		return nil // it has just ended
	}
	p, err := g.read(id.Policy.Digest())
	if err != nil {
		return err
	}
	approved := g.approved(p, id.Run)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.replaceLocked(cell, id.Run, approved)
}

// replaceLocked puts a policy in force for a cell that is still there.
func (g *gateway) replaceLocked(cell, run string, p *rules.Policy) error {
	f := g.files[cell]
	if f == nil || f.Run != run {
		return nil // it has just ended
	}
	if err := g.table.Attach(live.Cell{Identity: gate.Identity{Cell: cell, Run: run, Policy: p}, Addr: f.Sandbox}); err != nil {
		return err
	}
	g.dialer.Forget(cell)
	return nil
}

// expire has everything judged again whose permission ends, until ctx ends: at
// the end of an approval, and at the beginning of a day of UTC, when rules expire.
func (g *gateway) expire(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		g.endApprovals(last, now)
		last = now
	}
}

// endApprovals has the cells judged again of which something ended. The policy
// that is in force knows the times itself, so nothing is read or proved.
func (g *gateway) endApprovals(last, now time.Time) {
	ended := g.access.Ended(last, now)
	day := last.Unix()/86400 != now.Unix()/86400
	for _, c := range g.table.Cells() {
		if day || slices.Contains(ended, c.Cell) {
			g.again(c.Cell)
		}
	}
}

// again has what a cell has open judged by what it is under.
func (g *gateway) again(cell string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id, ok := g.table.Identity(cell)
	if !ok {
		return
	}
	if err := g.replaceLocked(cell, id.Run, id.Policy); err != nil {
		g.log.Error("judging a cell again", "cell", cell, "cause", err)
	}
}

// restoreAccess takes what was asked and decided from the log, for the runs that
// go on: the log is the truth about them.
func (g *gateway) restoreAccess() error {
	files, _ := control.ReadAll(g.inst.cells()) // what cannot be read is told when it is attached
	runs := map[string]bool{}
	for _, f := range files {
		runs[f.Run] = true
	}
	if len(runs) == 0 {
		return nil
	}
	f, err := query.Parse("kind=access.asked,access.decided", time.Now())
	if err != nil {
		return err
	}
	for rec, err := range query.Records(g.inst.auditDir(), f) {
		if err != nil {
			return fmt.Errorf("reading what was approved: %w", err)
		}
		if runs[rec.Run] {
			g.restore(&rec)
		}
	}
	return nil
}

func (g *gateway) restore(rec *audit.Record) {
	if rec.Kind == audit.AccessAsked {
		var data askedOut
		_ = json.Unmarshal(rec.Data, &data) // what it said is for people alone
		g.access.Put(&live.Ask{
			ID: rec.ID, Time: rec.Time, Cell: rec.Cell, Run: rec.Run, Record: rec.Ref, Reason: rec.Reason,
			Method: rec.Method, Host: rec.Host, Port: rec.Port, Path: rec.Path, Why: data.Why, State: live.Asked,
		})
		return
	}
	var data decidedOut
	a, ok := g.access.Get(rec.Ref)
	if err := json.Unmarshal(rec.Data, &data); err != nil || !ok {
		return // not approved, then
	}
	a.Decided = rec.Time
	a.State, a.By, a.Until, a.Methods, a.Paths, a.Note = data.State, data.By, data.Until, data.Methods, data.Paths, data.Note
	g.access.Put(&a)
}
