package gate

import (
	"context"
	"errors"

	"sallyport/audit"
	"sallyport/rules"
)

// What happens to credentials is told by an event of its own, so that nobody has to
// know which reasons are about one: in the admission, if it is known by then that the
// credential goes out, and else in a record that refers to it.

// The events of a credential record.
const (
	eventUse     = "use"     // it goes out with the request
	eventRefusal = "refusal" // it was asked for, and not given
	eventLeak    = "leak"    // its placeholder was sent where it does not belong
	eventMint    = "mint"    // a token was made with it
	eventUnsaved = "unsaved" // what a server gave in its place could not be kept on disk
)

// eventOf returns what a refusal says about a credential, "" for nothing.
func eventOf(r rules.Reason) string {
	switch r {
	case rules.PlaceholderLeak:
		return eventLeak
	case rules.ForeignCredential, rules.CredentialMismatch, rules.CredentialRevoked, rules.CredentialNeedsTLS, rules.CredentialUnavail, rules.BrokerUnavailable:
		return eventRefusal
	default:
		return ""
	}
}

// tellCredential writes the record about the credential of a request that was
// refused because of one. of is the record of the refusal, id that of the
// request.
func (g *Gate) tellCredential(ctx context.Context, of *audit.Record, id string) error {
	event := eventOf(rules.Reason(of.Reason))
	if event == "" {
		return nil
	}
	rec := g.lend()
	defer g.giveBack(rec)
	*rec = *of
	aboutCredential(rec, id, event)
	return g.cfg.Recorder.Append(ctx, rec)
}

// aboutCredential makes a record of the request id one of what happened to its
// credential: whose it is and where it was to go. What became of the request is told
// in its own records.
func aboutCredential(rec *audit.Record, id, event string) {
	rec.Kind, rec.ID, rec.Ref, rec.Event, rec.Data = audit.Credential, "", id, event, nil
	rec.Verdict, rec.WouldDeny, rec.Addr, rec.Answer, rec.Status = "", "", "", "", 0
	rec.Sent, rec.Received, rec.Micros = 0, 0, 0
	rec.Values, rec.Cut = "", nil
}

// Used records that the credential of p goes out with its request, before it
// does, unless the record of the admission says so already ([Gate.AdmitUsing]).
// An error is a [*DeniedError]: not recorded, do not send it.
func (g *Gate) Used(ctx context.Context, p Pass) error {
	if p.Dialable() && p.p.gate == g && p.p.used.CompareAndSwap(true, false) {
		return nil
	}
	return g.credential(ctx, p, eventUse)
}

// Minted records that a token was made with the credential of p.
func (g *Gate) Minted(ctx context.Context, p Pass) error { return g.credential(ctx, p, eventMint) }

// Unsaved records that what a server gave in place of the secret of p's credential
// could not be kept on disk.
func (g *Gate) Unsaved(ctx context.Context, p Pass) error { return g.credential(ctx, p, eventUnsaved) }

func (g *Gate) credential(ctx context.Context, p Pass, event string) error {
	if !p.Dialable() || p.p.gate != g {
		return denied(p.ID(), rules.Decision{}, rules.NoPolicy, errors.New("a credential for no pass"))
	}
	rec := g.lend()
	defer g.giveBack(rec)
	p.p.record(rec, audit.Credential)
	aboutCredential(rec, p.p.id, event)
	if err := g.cfg.Recorder.Append(ctx, rec); err != nil {
		return denied(p.p.id, p.p.decision, rules.AuditUnavailable, err)
	}
	return nil
}
