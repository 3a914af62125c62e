package sign

import (
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

// CountMints returns a context in which the tokens that are minted are counted.
func CountMints(ctx context.Context) (context.Context, *atomic.Int64) {
	n := new(atomic.Int64)
	return context.WithValue(ctx, mintsKey{}, n), n
}

// minter keeps one token that was made with a secret, and has it made anew by
// one caller at a time: ahead of its end, while the others use what there is, or
// with the others waiting. Another secret begins anew, so that nothing made with
// a rotated one is used again.
type minter struct {
	mint func(context.Context, secret.Value) (minted, error)
	now  func() time.Time

	mu      sync.Mutex // guards what follows
	key     [sha256.Size]byte
	token   string
	renew   time.Time // from here on one caller tries for another
	until   time.Time // from here on the token is not used
	err     error     // of the last mint
	retry   time.Time // until here err is told again
	running chan struct{}
}

// get returns a token that was made with v.
func (m *minter) get(ctx context.Context, v secret.Value) (string, error) {
	key := sha256.Sum256(v.Reveal())
	for {
		step := m.next(key)
		switch {
		case step.mine:
			m.run(ctx, v, key, step.running)
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
	err     error
	running chan struct{}
}

func (m *minter) next(key [sha256.Size]byte) step {
	m.mu.Lock()
	defer m.mu.Unlock()
	if key != m.key {
		m.key, m.token, m.err, m.running = key, "", nil, nil
		m.renew, m.until, m.retry = time.Time{}, time.Time{}, time.Time{}
	}
	now := m.now()
	usable := m.token != "" && now.Before(m.until)
	resting := m.err != nil && now.Before(m.retry)
	fresh := usable && now.Before(m.renew)
	switch {
	case !fresh && !resting && m.running == nil:
		m.running = make(chan struct{})
		return step{mine: true, running: m.running}
	case usable:
		return step{token: m.token}
	case resting:
		return step{err: m.err}
	default:
		return step{running: m.running}
	}
}

// run mints and stores what came of it. Others wait for it, so that it does not
// end with the request that happened to start it.
func (m *minter) run(ctx context.Context, v secret.Value, key [sha256.Size]byte, done chan struct{}) {
	defer close(done)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), mintTimeout, fmt.Errorf("it took longer than %v", mintTimeout))
	defer cancel()
	got, err := m.mint(ctx, v)
	if err == nil && got.life == 0 {
		got.life = mintLife
	}
	if err == nil && got.life <= mintMargin {
		err = errors.New("the token is at its end already; do the clocks agree?")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if key != m.key {
		return // the secret was rotated meanwhile
	}
	now := m.now()
	m.running, m.err = nil, err
	if err != nil {
		m.retry = now.Add(mintRetry)
		return
	}
	if n, ok := ctx.Value(mintsKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
	use := got.life - mintMargin
	// Not all at the same moment, where many brokers share an endpoint.
	m.token, m.until, m.renew = got.token, now.Add(use), now.Add(use*3/4+rand.N(use/8+1)) //nolint:gosec // nobody gains by guessing it
}
