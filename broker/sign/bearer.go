package sign

import (
	"context"

	"sallyport/broker/secret"
	"sallyport/control"
)

// bearer is RFC 6750 section 2.1: Authorization: Bearer SECRET.
type bearer struct{}

func (bearer) Place() control.Place { return control.Place{Type: "bearer", Header: "Authorization"} }

func (bearer) Check(v secret.Value) error { return checkHeaderSafe(v) }

// Steady implements [Steady].
func (bearer) Steady() {}

func (b bearer) Sign(_ context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := b.Check(v); err != nil {
		return Changes{}, err
	}
	text := string(v.Reveal())
	return Changes{Set: map[string][]string{"Authorization": {"Bearer " + text}}, Expose: []string{text}}, nil
}
