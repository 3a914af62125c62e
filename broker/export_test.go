package broker

import (
	"context"
	"io"
	"net/http"
	"time"

	"sallyport/broker/scrub"
	"sallyport/broker/secret"
)

// StandIn is what a sandbox gets for a secret.
func StandIn(secret string) (text string, parts []string, err error) {
	s, err := newStandIn([]byte(secret))
	return s.text, s.parts, err
}

// Unframe takes the signatures of chunks out of a body, as for a request that is
// signed anew.
func Unframe(r *http.Request, trailer bool) (io.ReadCloser, int64, error) {
	m, err := message{}.signedChunks(r, trailer)
	return m.body, m.length, err
}

// GrantDirect grants credentials without a socket, for tests in a bubble.
func (s *Server) GrantDirect(ctx context.Context, cell, run string, names ...string) error {
	_, err := s.grant(ctx, GrantRequest{Cell: cell, Run: run, Credentials: names})
	return err
}

// SignDirect returns the header Authorization that a GET of a host's / gets, and
// whether a token was made for it.
func (s *Server) SignDirect(ctx context.Context, cell, run, credential, host string) (header string, minted bool, err error) {
	ans, err := s.inject(ctx, injectRequest{
		Cell: cell, Run: run, Credential: credential, Secure: true, Method: http.MethodGet, Host: host, Port: 443, Path: "/",
	})
	if err != nil {
		return "", false, err
	}
	return ans.Set["Authorization"][0], ans.Minted, nil
}

// RevokeDirect revokes a credential without a socket.
func (s *Server) RevokeDirect(ctx context.Context, credential string) error {
	_, err := s.revokeCredential(ctx, Named{credential})
	return err
}

// HoldAnswer has a holder hold an answer with a secret for d, and returns the
// secret as it is held, and how many answers there still are.
func HoldAnswer(text string, d time.Duration) (held secret.Value, left func() int) {
	h := &holder{}
	q := question{credential: "api"}
	h.put(nil, q, injectAnswer{Set: map[string][]string{"Authorization": {text}}, Hold: d}, func(int64) {})
	return h.answers[q].set[0].value, func() int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.answers)
	}
}

// Exposes returns what keeps a cell's secrets out of answers, and out of messages.
func (c *Client) Exposes(cell string) (answers, messages *scrub.Scrubber) {
	cc := c.cell(cell)
	return cc.scrub.Load(), cc.hiding()
}
