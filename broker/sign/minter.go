package sign

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"sallyport/broker/secret"
)

const (
	mintTimeout = 10 * time.Second
	// mintRetry is how long a failed mint is told again before another is tried:
	// a token endpoint that is down must not be asked by every request.
	mintRetry = 5 * time.Second
	// mintMargin is kept between the end of a token and its last use, for clocks
	// that differ and requests that take their time.
	mintMargin = 30 * time.Second
	// mintLife stands in for a life that the endpoint did not tell.
	mintLife = 5 * time.Minute
)

// minted is a token as an endpoint gave it.
type minted struct {
	token string
	life  time.Duration // 0 is not known
}

type mintsKey struct{}

// CountMints returns a context in which tokens are counted that are used for the
// first time.
func CountMints(ctx context.Context) (context.Context, *atomic.Int64) {
	n := new(atomic.Int64)
	return context.WithValue(ctx, mintsKey{}, n), n
}

// minter keeps one token that was made with a secret. Where there is none that can
// be used, one caller makes it and the others wait. Ahead of its end the broker's
// refresher has it made anew ([Renewer]), while everybody uses what there is.
// Another secret begins anew, so that nothing made with a rotated one is used again.
type minter struct {
	mint func(context.Context, secret.Value) (minted, error)
	now  func() time.Time
	made func() // see [Config]; nil tells nobody

	mu      sync.Mutex // guards what follows
	key     [sha256.Size]byte
	token   string
	used    bool      // the token, since it was made
	renew   time.Time // from here on another is made ahead
	until   time.Time // from here on the token is not used
	err     error     // of the last mint
	retry   time.Time // until here err is told again
	running chan struct{}
}

func newMinter(cfg Config, mint func(context.Context, secret.Value) (minted, error)) *minter {
	return &minter{mint: mint, now: cfg.Now, made: cfg.Made}
}

// get returns a token that was made with v.
func (m *minter) get(ctx context.Context, v secret.Value) (string, error) {
	key := sha256.Sum256(v.Reveal())
	for {
		step := m.next(key)
		switch {
		case step.mine:
			// All wait for it alike, and it ends with none of them: a request that was
			// given up leaves a token to the next one. mintTimeout bounds it.
			own := secret.New(bytes.Clone(v.Reveal())) // the caller wipes v when it leaves
			go func() {
				defer own.Wipe()
				_ = m.run(context.WithoutCancel(ctx), own, key, step.running) // the next step tells
			}()
		case step.first:
			m.tell() // from now on it is worth renewing
			if n, ok := ctx.Value(mintsKey{}).(*atomic.Int64); ok {
				n.Add(1)
			}
			return step.token, nil
		case step.token != "" || step.err != nil:
			return step.token, step.err
		default:
			select {
			case <-step.running:
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
	}
}

// step is what a caller does next: run the mint, take what there is, or wait.
type step struct {
	mine    bool
	token   string
	first   bool // use of token
	err     error
	running chan struct{}
}

// tell tells that Due has changed.
func (m *minter) tell() {
	if m.made != nil {
		m.made()
	}
}

func (m *minter) next(key [sha256.Size]byte) step {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beginLocked(key)
	now := m.now()
	switch {
	case m.token != "" && now.Before(m.until):
		first := !m.used
		m.used = true
		return step{token: m.token, first: first}
	case m.running != nil:
		return step{running: m.running}
	case m.err != nil && now.Before(m.retry):
		return step{err: m.err}
	default:
		m.running = make(chan struct{})
		return step{mine: true, running: m.running}
	}
}

// beginLocked begins anew with another secret.
func (m *minter) beginLocked(key [sha256.Size]byte) {
	if key == m.key {
		return
	}
	m.key, m.token, m.used, m.err, m.running = key, "", false, nil, nil
	m.renew, m.until, m.retry = time.Time{}, time.Time{}, time.Time{}
}

// Due implements [Renewer]. A token that nobody used since it was made is let go.
func (m *minter) Due() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.token == "" || !m.used || m.running != nil || !m.now().Before(m.until) {
		return time.Time{}
	}
	if m.err != nil && m.retry.After(m.renew) {
		return m.retry
	}
	return m.renew
}

// Renew implements [Renewer].
func (m *minter) Renew(ctx context.Context, v secret.Value) error {
	if due := m.Due(); due.IsZero() || due.After(m.now()) {
		return nil
	}
	key := sha256.Sum256(v.Reveal())
	m.mu.Lock()
	m.beginLocked(key)
	if m.running != nil { // somebody was faster
		m.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	m.running = done
	m.mu.Unlock()
	return m.run(ctx, v, key, done)
}

// run mints and stores what came of it.
func (m *minter) run(ctx context.Context, v secret.Value, key [sha256.Size]byte, done chan struct{}) error {
	defer close(done)
	ctx, cancel := context.WithTimeoutCause(ctx, mintTimeout, fmt.Errorf("it took longer than %v", mintTimeout))
	defer cancel()
	asked := m.now() // the life of a token begins before its answer arrives
	got, err := m.mint(ctx, v)
	if err == nil && got.life == 0 {
		got.life = mintLife
	}
	if err == nil && got.life <= mintMargin {
		err = errors.New("the token is at its end already; do the clocks agree?")
	}
	m.store(key, got, err, asked)
	m.tell()
	return err
}

func (m *minter) store(key [sha256.Size]byte, got minted, err error, asked time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if key != m.key {
		return // the secret was rotated meanwhile
	}
	m.running, m.err = nil, err
	if err != nil {
		m.retry = m.now().Add(mintRetry)
		return
	}
	use := got.life - mintMargin
	// Not all at the same moment, where many brokers share an endpoint.
	ahead := use*3/4 + rand.N(use/8+1) //nolint:gosec // nobody gains by guessing it
	m.token, m.used, m.until, m.renew = got.token, false, asked.Add(use), asked.Add(ahead)
}
