package sign

import (
	"context"
	"errors"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// query puts the secret into a parameter of the query.
type query struct{ param string }

func newQuery(s policyfile.Scheme) (Scheme, error) {
	if s.Param == "" {
		return nil, errors.New(`type "query" needs the name of the parameter, for example "query: {param: key}"`)
	}
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
	if strings.Trim(s.Param, plain) != "" {
		return nil, errors.New("a parameter's name is of letters, digits, -, ., _ and ~")
	}
	return query{s.Param}, nil
}

func (q query) Place() control.Place { return control.Place{Type: "query", Header: q.param} }

func (query) Check(v secret.Value) error { return checkHeaderSafe(v) }

// Steady implements [Steady].
func (query) Steady() {}

func (q query) Sign(_ context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := q.Check(v); err != nil {
		return Changes{}, err
	}
	text := string(v.Reveal())
	return Changes{Query: map[string]string{q.param: text}, Expose: []string{text}}, nil
}
