package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// issuerFunc is a token endpoint without a network, for tests in a bubble.
type issuerFunc func(ctx context.Context, n int) (status int, body string, err error)

// counted makes a transport of f, and tells how often it was asked.
func (f issuerFunc) counted() (http.RoundTripper, func() int) {
	var mu sync.Mutex
	n := 0
	asked := func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
	return roundTripFunc(func(r *http.Request) (*http.Response, error) {
		mu.Lock()
		n++
		now := n
		mu.Unlock()
		status, body, err := f(r.Context(), now)
		if err != nil {
			return nil, err
		}
		return &http.Response{
			StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(body)), Request: r,
		}, nil
	}), asked
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// refreshing starts a broker with one credential, idp, whose tokens a transport
// makes, and its refresher.
func refreshing(t *testing.T, way http.RoundTripper) (*broker.Server, *lockedBuffer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	writeSecret(t, path, "the-client-secret")
	told := &lockedBuffer{}
	s, err := broker.NewServer(broker.Config{
		Credentials: []policyfile.Credential{{
			Name: "idp", Source: policyfile.Source{File: path},
			Scheme: policyfile.Scheme{Type: policyfile.OAuth2Client, OAuth2: policyfile.OAuth2{
				TokenURL: "https://id.test/token", ClientID: "cli",
			}},
			Endpoints: []policyfile.Endpoint{{Host: host("idp.test"), Ports: []uint16{443}}},
		}},
		UID: uint32(os.Getuid()), Transport: way, Now: time.Now, Log: slog.New(slog.NewTextHandler(told, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Refresh(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	if err := s.GrantDirect(t.Context(), "cell1", "run1", "idp"); err != nil {
		t.Fatal(err)
	}
	return s, told
}

func hourly(_ context.Context, n int) (int, string, error) {
	return http.StatusOK, fmt.Sprintf(`{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, n), nil
}

// TestTokensAreMadeAhead: who uses a credential never waits for a token after the
// first; what nobody uses is made anew once and then let go.
func TestTokensAreMadeAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way, asked := issuerFunc(hourly).counted()
		s, _ := refreshing(t, way)
		var tokens, told int
		last := ""
		for range 24 * 60 { // a day, a request a minute
			before := asked()
			got, minted, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test")
			if err != nil {
				t.Fatal(err)
			}
			if tokens > 0 && asked() != before {
				t.Fatalf("a request waited for %s", got)
			}
			if got != last {
				last, tokens = got, tokens+1
			}
			if minted {
				told++
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if tokens < 27 || tokens > 33 || told != tokens {
			t.Errorf("%d tokens in a day, %d of them told", tokens, told)
		}
		before := asked()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := asked() - before; n > 1 {
			t.Errorf("%d tokens were made in a day in which nobody asked", n)
		}
		if _, _, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test"); err != nil {
			t.Errorf("twin, after that day: %v", err)
		}
	})
}

// TestEndpointThatIsDownIsAskedRarely: every five seconds while a token serves on,
// and nobody is refused before its end; and it comes back by itself.
func TestEndpointThatIsDownIsAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		way, asked := issuerFunc(func(ctx context.Context, n int) (int, string, error) {
			if down.Load() {
				return 0, "", errors.New("connection refused")
			}
			return hourly(ctx, n)
		}).counted()
		s, told := refreshing(t, way)
		sign := func() (string, error) {
			got, _, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test")
			return got, err
		}
		if _, err := sign(); err != nil {
			t.Fatal(err)
		}
		down.Store(true)
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if got, err := sign(); err != nil || got != "Bearer token-1" {
			t.Errorf("before its end: %q, %v", got, err)
		}
		if n := asked(); n < 50 || n > 200 { // at least six minutes, at most fifteen, every five seconds
			t.Errorf("asked %d times", n)
		}
		if !strings.Contains(told.String(), "serves until its end") || !strings.Contains(told.String(), "connection refused") {
			t.Errorf("told: %.300s", told)
		}
		time.Sleep(2 * time.Minute)
		if got, err := sign(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("after its end: %q, %v", got, err)
		}
		down.Store(false)
		time.Sleep(5 * time.Second)
		if got, err := sign(); err != nil || got == "Bearer token-1" {
			t.Errorf("twin, after it came back: %q, %v", got, err)
		}
	})
}

// TestSlowEndpointHoldsNobodyUp: a renewal that hangs is given up, and the broker's
// end does not wait for it.
func TestSlowEndpointHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way, asked := issuerFunc(func(ctx context.Context, n int) (int, string, error) {
			if n == 1 {
				return hourly(ctx, n)
			}
			<-ctx.Done()
			return 0, "", ctx.Err()
		}).counted()
		s, _ := refreshing(t, way)
		if _, _, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(54 * time.Minute)
		synctest.Wait()
		began := time.Now()
		if got, _, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test"); err != nil || got != "Bearer token-1" || time.Since(began) != 0 {
			t.Errorf("%q, %v, after %v", got, err, time.Since(began))
		}
		if asked() < 2 {
			t.Error("no renewal was tried")
		}
		// The end of the test ends Refresh, in the middle of a renewal or not.
	})
}

// TestSlowFirstTokenIsTold: before the gateway gives the broker up, so that its reader
// learns what is slow; the token serves who comes next.
func TestSlowFirstTokenIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way, asked := issuerFunc(func(ctx context.Context, n int) (int, string, error) {
			time.Sleep(7 * time.Second)
			return hourly(ctx, n)
		}).counted()
		s, _ := refreshing(t, way)
		began := time.Now()
		_, _, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test")
		refusal, ok := errors.AsType[*control.Error](err)
		if !ok || refusal.Reason != string(rules.CredentialUnavail) || !strings.Contains(refusal.Text, "https://id.test/token: no answer within 4s") || time.Since(began) != 4*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if got, minted, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test"); err != nil || got != "Bearer token-1" || !minted || asked() != 1 {
			t.Errorf("twin, the next one: %q, %v, %v, asked %d times", got, minted, err, asked())
		}
	})
}

// TestRevokedCredentialIsNotRenewed: neither while it is revoked nor after a secret
// was rotated with what came before.
func TestRevokedCredentialIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way, asked := issuerFunc(hourly).counted()
		s, _ := refreshing(t, way)
		if _, _, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test"); err != nil {
			t.Fatal(err)
		}
		if err := s.RevokeDirect(t.Context(), "idp"); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.SignDirect(t.Context(), "cell1", "run1", "idp", "idp.test"); err == nil {
			t.Errorf("signed with %q", got)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if asked() != 1 {
			t.Errorf("asked %d times, want once", asked())
		}
	})
}
