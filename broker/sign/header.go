package sign

import (
	"context"
	"errors"

	"golang.org/x/net/http/httpguts"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// header puts the secret, after a prefix if there is one, into a header of its own.
type header struct{ name, prefix string }

func newHeader(s policyfile.Scheme) (Scheme, error) {
	if s.Header == "" {
		return nil, errors.New(`type "header" needs the name of the header, for example "header: {name: X-Api-Key}"`)
	}
	name, err := headerName(s.Header)
	if err != nil {
		return nil, err
	}
	if !httpguts.ValidHeaderFieldValue(s.Prefix) {
		return nil, errors.New("the prefix cannot stand in a header")
	}
	return header{name, s.Prefix}, nil
}

func (h header) Place() control.Place {
	return control.Place{Type: "header", Header: h.name}
}

func (h header) Check(v secret.Value) error { return checkHeaderSafe(v) }

// Steady implements [Steady].
func (header) Steady() {}

func (h header) Sign(_ context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := h.Check(v); err != nil {
		return Changes{}, err
	}
	text := string(v.Reveal())
	return Changes{Set: map[string][]string{h.name: {h.prefix + text}}, Expose: []string{text}}, nil
}
