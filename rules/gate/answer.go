package gate

import (
	"context"

	"sallyport/audit"
	"sallyport/rules"
)

// Answer decides a DNS query (Resolve) and records it with what answer says
// will be sent for that decision. An error means: not recorded, do not answer.
// The Pass tells the decision. Where the policy has the name looked up it is
// open ([Pass.LooksUp]) and must be closed with [Pass.Done], which records what
// was answered; else there is nothing left to do.
func (g *Gate) Answer(ctx context.Context, req rules.Request, qtype string, answer func(rules.Decision) string) (Pass, error) {
	req.Question = rules.Resolve
	p := g.decide(ctx, req)
	p.qtype = qtype
	rec := g.lend()
	defer g.giveBack(rec)
	p.record(rec, audit.DNS)
	rec.Answer = answer(p.decision)
	g.hideLeak(rec, &p.req)
	if err := g.cfg.Recorder.Append(ctx, rec); err != nil {
		return Pass{}, denied(p.id, p.decision, rules.AuditUnavailable, err)
	}
	_ = g.tellCredential(ctx, rec, p.id) // the query is refused either way
	p.recorded = true
	p.closed.Store(!p.decision.LookUp)
	return Pass{p}, nil
}

// Query is a DNS query that is answered together with others.
type Query struct {
	Origin  Origin
	Request rules.Request
	QType   string
}

// AllRecorder is a [Recorder] that can append several records at once: all of
// them are in the log when AppendAll returns nil, and after an error none is.
type AllRecorder interface {
	AppendAll(context.Context, []*audit.Record) error
}

// AnswerAll is [Gate.Answer] for queries that came together: each is decided by
// itself and has a record of its own, and all records share one write. answer is
// told which of them it is asked about. opened gets the open passes: those of
// queries whose name is to be looked up, and no others. An error means that none
// of the queries may be answered.
func (g *Gate) AnswerAll(ctx context.Context, queries []Query, answer func(i int, d rules.Decision) string, opened func(i int, p Pass)) error {
	r := g.newRound(len(queries))
	defer g.endRound(r)
	for i := range queries {
		p := r.passes[i]
		p.origin = known(queries[i].Origin)
		req := queries[i].Request
		req.Question = rules.Resolve
		g.decideInto(p, req)
		p.qtype = queries[i].QType
		rec := g.lend()
		r.records = append(r.records, rec)
		p.record(rec, audit.DNS)
		rec.Answer = answer(i, p.decision)
		g.hideLeak(rec, &p.req)
	}
	if err := AppendAll(ctx, g.cfg.Recorder, r.records); err != nil {
		return denied(r.passes[0].id, r.passes[0].decision, rules.AuditUnavailable, err)
	}
	for i := range queries {
		_ = g.tellCredential(ctx, r.records[i], r.passes[i].id) // refused either way
		if p := r.passes[i]; p.decision.LookUp {
			p.recorded = true
			r.passes[i] = nil // it is somebody's now
			opened(i, Pass{p})
		}
	}
	return nil
}

// AppendAll appends records to an [AllRecorder] at once, and to any other one
// after the other, up to the first that fails.
func AppendAll(ctx context.Context, to Recorder, recs []*audit.Record) error {
	if all, ok := to.(AllRecorder); ok {
		return all.AppendAll(ctx, recs)
	}
	for _, rec := range recs {
		if err := to.Append(ctx, rec); err != nil {
			return err
		}
	}
	return nil
}

// round is what one AnswerAll needs. Passes that nobody gets are used again.
type round struct {
	passes  []*pass
	records []*audit.Record
}

func (g *Gate) newRound(n int) *round {
	r, ok := g.rounds.Get().(*round)
	if !ok {
		r = &round{}
	}
	for len(r.passes) < n {
		r.passes = append(r.passes, nil)
	}
	for i, p := range r.passes[:n] {
		if p == nil {
			r.passes[i] = &pass{}
		}
	}
	return r
}

func (g *Gate) endRound(r *round) {
	for _, rec := range r.records {
		g.giveBack(rec)
	}
	clear(r.records)
	r.records = r.records[:0]
	for _, p := range r.passes {
		if p != nil {
			p.forget()
		}
	}
	g.rounds.Put(r)
}

// forget makes a pass that nobody was given like a new one.
func (p *pass) forget() {
	p.gate, p.id, p.identity, p.req, p.qtype = nil, "", Identity{}, rules.Request{}, ""
	p.decision, p.origin, p.query, p.values, p.more = rules.Decision{}, origin{}, "", "", false
}
