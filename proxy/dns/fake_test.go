package dns_test

import (
	"context"
	"errors"
	"log/slog"

	"sallyport/audit"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/gate"
)

var quiet = slog.New(slog.DiscardHandler)

// fakeGate admits every name without a record.
type fakeGate struct{}

func (fakeGate) Answer(_ context.Context, _ rules.Request, _ string, answer func(rules.Decision) string) (gate.Pass, error) {
	d := rules.Decision{Verdict: rules.Inspect, Reason: rules.Allowed}
	_ = answer(d)
	return gate.Pass{}, nil
}

// AnswerAll decides one after the other.
func (fakeGate) AnswerAll(ctx context.Context, qs []gate.Query, answer func(int, rules.Decision) string, _ func(int, gate.Pass)) error {
	for i, q := range qs {
		if _, err := (fakeGate{}).Answer(ctx, q.Request, q.QType, func(d rules.Decision) string { return answer(i, d) }); err != nil {
			return err
		}
	}
	return nil
}

func (fakeGate) Refuse(_ context.Context, _ rules.Request, r rules.Reason, _ error) error {
	return &gate.DeniedError{Reason: r}
}

// oddGate decides by the first letter of a name.
type oddGate struct{ fakeGate }

func (oddGate) Answer(_ context.Context, r rules.Request, _ string, answer func(rules.Decision) string) (gate.Pass, error) {
	d := rules.Decision{Verdict: rules.Inspect, Reason: rules.Allowed}
	switch s := r.Endpoint.Host.String(); s[0] {
	case 'e':
		d = rules.Decision{Reason: rules.HostNotAllowed, NameError: true}
	case 'x':
		d = rules.Decision{Reason: rules.HostNotAllowed}
	case 'u':
		d = rules.Decision{Reason: rules.UnknownCell}
	case 'f':
		return gate.Pass{}, errors.New("full")
	}
	_ = answer(d)
	return gate.Pass{}, nil
}

// panicGate breaks on one name.
type panicGate struct{ dns.Gate }

func (g panicGate) Answer(ctx context.Context, r rules.Request, t string, f func(rules.Decision) string) (gate.Pass, error) {
	if r.Endpoint.Host.String() == "boom.test" {
		panic("boom")
	}
	return g.Gate.Answer(ctx, r, t, f)
}

func (g panicGate) AnswerAll(ctx context.Context, qs []gate.Query, answer func(int, rules.Decision) string, opened func(int, gate.Pass)) error {
	for _, q := range qs {
		if q.Request.Endpoint.Host.String() == "boom.test" {
			panic("boom")
		}
	}
	return g.Gate.AnswerAll(ctx, qs, answer, opened)
}

// nothing records nothing.
type nothing struct{}

func (nothing) Append(context.Context, *audit.Record) error { return nil }
