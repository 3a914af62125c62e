package sign

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// basic is RFC 7617: Authorization: Basic base64(USERNAME:SECRET).
type basic struct{ username string }

func newBasic(s policyfile.Scheme) (Scheme, error) {
	if s.Username == "" {
		return nil, errors.New(`type "basic" needs a user name, for example "basic: {username: x-access-token}"`)
	}
	if strings.Contains(s.Username, ":") {
		return nil, errors.New("a user name of HTTP basic authentication has no colon (RFC 7617 section 2)")
	}
	if err := checkHeaderSafe(secret.New([]byte(s.Username))); err != nil {
		return nil, errors.New("the user name is not plain ASCII text")
	}
	return basic{s.Username}, nil
}

func (basic) Place() control.Place { return control.Place{Type: "basic", Header: "Authorization"} }

func (basic) Check(v secret.Value) error { return checkHeaderSafe(v) }

// Steady implements [Steady].
func (basic) Steady() {}

func (b basic) Sign(_ context.Context, v secret.Value, _ Request) (Changes, error) {
	if err := b.Check(v); err != nil {
		return Changes{}, err
	}
	text := string(v.Reveal())
	pair := base64.StdEncoding.EncodeToString([]byte(b.username + ":" + text))
	return Changes{Set: map[string][]string{"Authorization": {"Basic " + pair}}, Expose: []string{text}}, nil
}
