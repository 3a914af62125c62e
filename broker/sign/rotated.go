package sign

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"sallyport/broker/secret"
)

// rotated is the refresh token that took the place of a secret's own (RFC 6749
// section 6). It is kept on disk before anybody uses what came with it, and in
// memory where that fails: the old one may be of no use any more.
//
// BUG: a broker that is killed between the server's answer and the write has lost
// it. Servers that mean well take the old one for some seconds more.
type rotated struct {
	keep Keeper // nil for none
	now  func() time.Time

	mu     sync.Mutex // guards what follows
	loaded bool
	of     [sha256.Size]byte // the secret that token descends from
	token  string            // "" for none
	err    error             // why token is not kept
	retry  time.Time         // when to try that again
}

// saveRetry is how long a disk that took nothing is left alone.
const saveRetry = 30 * time.Second

// keptToken is what a Keeper holds. Of is a hash of the secret that the token
// descends from: another secret begins anew.
type keptToken struct {
	Of           string `json:"of"`
	RefreshToken string `json:"refresh_token"`
}

// current returns the refresh token to use: the secret's own, or what took its place.
// What is kept and cannot be read is an error: servers take a token that was rotated
// away for a thief's, and end all that came of it.
func (r *rotated) current(ctx context.Context, of [sha256.Size]byte, own string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.loaded && r.keep != nil {
		v, err := r.keep.Load(ctx)
		if err != nil {
			return "", fmt.Errorf("the refresh token that the server gave last: %w", err)
		}
		defer v.Wipe()
		var k keptToken
		if v.Len() > 0 && (json.Unmarshal(v.Reveal(), &k) != nil || k.RefreshToken == "") {
			return "", errors.New("the refresh token that the server gave last is kept in a form that this version does not know")
		}
		if k.Of == hex.EncodeToString(of[:]) {
			r.of, r.token = of, k.RefreshToken
		}
	}
	r.loaded = true
	if r.of == of && r.token != "" {
		return r.token, nil
	}
	return own, nil
}

// next takes note of the token that a server gave.
func (r *rotated) next(of [sha256.Size]byte, token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == of && r.token == token && r.err == nil {
		return // some servers give the same one each time
	}
	r.of, r.token = of, token
	r.saveLocked()
}

func (r *rotated) saveLocked() {
	if r.keep == nil {
		return
	}
	text, err := json.Marshal(keptToken{hex.EncodeToString(r.of[:]), r.token}) //nolint:gosec // it is encrypted
	if err == nil {
		v := secret.New(text)
		err = r.keep.Save(v)
		v.Wipe()
	}
	r.err, r.retry = err, r.now().Add(saveRetry)
}

// due returns when keeping the token is to be tried again; the zero time is never.
func (r *rotated) due() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return time.Time{}
	}
	return r.retry
}

// again tries to keep what could not be kept, if it is time.
func (r *rotated) again() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil && !r.now().Before(r.retry) {
		r.saveLocked()
		return r.err
	}
	return nil
}

func (r *rotated) fault() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
