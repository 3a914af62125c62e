package sign

import (
	"context"
	"errors"
	"unicode/utf8"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// body puts the secret into fields of the body, where the placeholder stands. The
// gateway does it: the body streams past it.
type body struct{ fields []policyfile.Field }

func newBody(s policyfile.Scheme) (Scheme, error) {
	if len(s.Body) == 0 {
		return nil, errors.New(`type "body" needs fields, for example "body: {form: [token]}"`)
	}
	return body{s.Body}, nil
}

func (b body) Place() control.Place {
	return control.Place{Type: "body", Name: policyfile.JoinFields(b.fields)}
}

// Check implements [Scheme]: the secret is text, in whatever field it goes into.
func (body) Check(v secret.Value) error {
	b := v.Reveal()
	switch {
	case len(b) == 0:
		return errors.New("the secret is empty")
	case !utf8.Valid(b):
		return errors.New("the secret is not text in UTF-8")
	}
	for i, c := range b {
		if c == 0 || c == '\r' {
			return errors.New("the secret has a NUL or a carriage return")
		}
		if c == '\n' && i == len(b)-1 {
			return errors.New("the secret ends in a line break")
		}
	}
	return nil
}

// Sign implements [Scheme].
func (b body) Sign(_ context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := b.Check(v); err != nil {
		return Changes{}, err
	}
	text := string(v.Reveal())
	return Changes{Body: text, Expose: []string{text}}, nil
}
