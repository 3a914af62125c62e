package source

import (
	"context"
	"fmt"
	"regexp"

	"sallyport/broker/secret"
)

// env reads a variable of the broker's own environment. It cannot be rotated
// without a restart.
type env struct {
	name   string
	lookup func(string) (string, bool)
}

var validEnv = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func newEnv(name string, cfg Config) (Source, error) {
	if !validEnv.MatchString(name) {
		return nil, fmt.Errorf("source env %q is not the name of a variable", name)
	}
	return env{name, cfg.LookupEnv}, nil
}

func (e env) String() string { return "env " + e.name }

func (e env) Get(context.Context) (secret.Value, error) {
	text, ok := e.lookup(e.name)
	switch {
	case !ok:
		return secret.Value{}, fmt.Errorf("reading variable %s of the broker: it is not set", e.name)
	case len(text) > MaxLen:
		return secret.Value{}, fmt.Errorf("reading variable %s of the broker: it is longer than %d octets", e.name, MaxLen)
	}
	v, err := finish([]byte(text))
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading variable %s of the broker: %w", e.name, err)
	}
	return v, nil
}
