package source

import (
	"context"

	"sallyport/broker/secret"
)

// none is the source of a client that has no secret.
type none struct{}

func (none) String() string { return "none" }

// Get returns a text that is no secret: no scheme that wants one takes a credential
// with this source.
func (none) Get(context.Context) (secret.Value, error) {
	return secret.New([]byte("a public client has no secret")), nil
}
