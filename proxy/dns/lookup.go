package dns

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/miekg/dns"

	"sallyport/rules"
	"sallyport/rules/gate"
)

var errNoLookUp = errors.New("nobody looks names up here")

// lookUp has looked up what a pass is for, and closes the pass with what will
// be answered. What cannot be recorded is not answered.
func (s *Server) lookUp(ctx context.Context, q *query, p gate.Pass) (out outcome) {
	end := gate.Outcome{Answer: failure.String(), Err: errInternal}
	defer func() {
		if v := recover(); v != nil { // here, since it is recorded already
			s.cfg.Log.ErrorContext(ctx, "dns: panic in a look-up", "cell", q.cell, "panic", fmt.Sprint(v))
			out = outcome{kind: failure}
		}
		if err := p.Done(ctx, end); err != nil {
			s.cfg.Log.WarnContext(ctx, "dns: look-up not recorded", "cell", q.cell, "err", err)
			out = outcome{kind: failure}
		}
	}()
	out, end = s.find(ctx, q.cell, p)
	return out
}

// find returns what is answered, and what is recorded of that. A cell whose
// look-ups hang keeps no other from being answered.
func (s *Server) find(ctx context.Context, cell string, p gate.Pass) (outcome, gate.Outcome) {
	if s.cfg.LookUp == nil {
		return outcome{kind: failure}, gate.Outcome{Answer: failure.String(), Err: errNoLookUp}
	}
	if !s.looks.Take(cell) {
		return outcome{kind: refusal, reason: rules.Limit}, gate.Outcome{Answer: refusal.String(), Reason: rules.Limit}
	}
	defer s.looks.Give(cell)
	list, err := s.cfg.LookUp(ctx, p)
	denied, isDenied := errors.AsType[*gate.DeniedError](err)
	switch {
	case isDenied:
		return outcome{kind: refusal, reason: denied.Reason}, gate.Outcome{Answer: refusal.String(), Reason: denied.Reason, Err: err}
	case err != nil:
		return outcome{kind: failure}, gate.Outcome{Answer: failure.String(), Err: err}
	case len(list) == 0:
		return outcome{kind: absent}, gate.Outcome{Answer: absent.String()}
	default:
		return outcome{kind: found, found: list}, gate.Outcome{Answer: text(list)}
	}
}

// text writes the data of records for the log.
func text(list []dns.RR) string {
	words := make([]string, len(list))
	for i, rr := range list {
		words[i], _ = strings.CutPrefix(rr.String(), rr.Header().String())
	}
	return strings.Join(words, "; ")
}

// records puts what was looked up under the name as it was asked for.
func (s *Server) records(owner string, list []dns.RR) []dns.RR {
	for _, rr := range list {
		h := rr.Header()
		h.Name, h.Ttl = owner, min(h.Ttl, s.ttl)
	}
	return list
}
