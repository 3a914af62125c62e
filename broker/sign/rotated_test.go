package sign_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

// rotator is a token endpoint that takes each refresh token once, and ends
// everything when one comes back (RFC 9700 section 4.14.2).
type rotator struct {
	*httptest.Server
	mu     sync.Mutex
	n      int
	reused bool
}

func newRotator(t *testing.T) *rotator {
	t.Helper()
	r := &rotator{}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.Close)
	return r
}

func (s *rotator) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.PostFormValue("refresh_token") != fmt.Sprintf("refresh-token-%d", s.n) || s.reused {
		s.reused = true
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_grant"}`)
		return
	}
	s.n++
	fmt.Fprintf(w, `{"access_token":"at-%d","token_type":"bearer","expires_in":3600,"refresh_token":"refresh-token-%d"}`, s.n, s.n)
}

// disk is a Keeper that fails on cue.
type disk struct {
	mu    sync.Mutex
	kept  string
	full  error
	lost  error
	saved int
}

func (d *disk) Load(context.Context) (secret.Value, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return secret.New([]byte(d.kept)), d.lost
}

func (d *disk) Save(v secret.Value) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.saved++
	if d.full == nil {
		d.kept = string(v.Reveal())
	}
	return d.full
}

// start is a broker's start: a scheme that knows nothing but what is kept.
func (s *rotator) start(t *testing.T, c *clock, keep sign.Keeper) sign.Scheme {
	t.Helper()
	out, err := sign.New(policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: policyfile.OAuth2{TokenURL: s.URL + "/token", ClientID: "cli"}},
		sign.Config{Transport: s.Client().Transport, Now: c.Now, Keep: keep})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func wantToken(t *testing.T, s sign.Scheme, secret, want string) {
	t.Helper()
	if got, err := token(t.Context(), s, secret); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

const firstRefresh = "refresh-token-0"

// TestRotatedRefreshTokenOutlivesTheBroker: without a Keeper the second start uses a
// token that was rotated away, and the server ends everything.
func TestRotatedRefreshTokenOutlivesTheBroker(t *testing.T) {
	s, c, d := newRotator(t), &clock{}, &disk{}
	for n := 1; n <= 3; n++ {
		wantToken(t, s.start(t, c, d), firstRefresh, fmt.Sprintf("at-%d", n))
	}
	if strings.Contains(d.kept, firstRefresh) || !strings.Contains(d.kept, "refresh-token-3") {
		t.Errorf("kept: %s", d.kept)
	}
	// Another secret begins anew, and what is kept of the one before counts for nothing.
	s.mu.Lock()
	s.n = 10
	s.mu.Unlock()
	wantToken(t, s.start(t, c, d), "refresh-token-10", "at-11")
	wantToken(t, s.start(t, c, d), "refresh-token-10", "at-12")
	if got, err := token(t.Context(), s.start(t, c, nil), "refresh-token-10"); err == nil {
		t.Errorf("without a Keeper: %q", got)
	}
}

// TestFullDiskKeepsTheRefreshTokenInMemory: it is told, tried again, and kept once
// there is room.
func TestFullDiskKeepsTheRefreshTokenInMemory(t *testing.T) {
	s, c, d := newRotator(t), &clock{}, &disk{full: errors.New("no space left on device")}
	c.now.Store(time.Now().UnixNano())
	b := s.start(t, c, d)
	wantToken(t, b, firstRefresh, "at-1")
	fault := func() error { return b.(sign.Rotator).Unsaved() }
	renew := func() error { return b.(sign.Renewer).Renew(t.Context(), secret.New([]byte(firstRefresh))) }
	if err := fault(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("unsaved: %v", err)
	}
	if due := b.(sign.Renewer).Due().Sub(c.Now()); due != 30*time.Second {
		t.Errorf("due in %v", due)
	}
	if err := renew(); err != nil || d.saved != 1 {
		t.Errorf("too early: %v, saved %d times", err, d.saved)
	}
	c.advance(30 * time.Second)
	if err := renew(); err == nil || d.saved != 2 {
		t.Errorf("still full: %v, saved %d times", err, d.saved)
	}
	c.advance(time.Hour)
	wantToken(t, b, firstRefresh, "at-2") // with the one in memory
	d.full = nil
	c.advance(30 * time.Second)
	if err := renew(); err != nil || fault() != nil {
		t.Errorf("with room: %v, %v", err, fault())
	}
	wantToken(t, s.start(t, c, d), firstRefresh, "at-3")
}

// TestUnreadableRefreshTokenIsNotReplacedByTheFirst: the server would take that one for
// a thief's.
func TestUnreadableRefreshTokenIsNotReplacedByTheFirst(t *testing.T) {
	s, c := newRotator(t), &clock{}
	c.now.Store(time.Now().UnixNano())
	d := &disk{}
	wantToken(t, s.start(t, c, d), firstRefresh, "at-1")
	good := d.kept
	for name, spoil := range map[string]func(){
		"unreadable":   func() { d.lost = errors.New("it is damaged") },
		"another form": func() { d.lost, d.kept = nil, `{"v":2}` },
		"no JSON":      func() { d.kept = "x" },
	} {
		spoil()
		b := s.start(t, c, d)
		if got, err := token(t.Context(), b, firstRefresh); err == nil || !strings.Contains(err.Error(), "the server gave last") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if s.reused {
		t.Error("the first refresh token was used again")
	}
	d.kept, d.lost = good, nil
	wantToken(t, s.start(t, c, d), firstRefresh, "at-2")
}
