package sign_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

// gitHub is a fixture that verifies an app's token as GitHub's documentation says
// it does, and gives a token for one installation.
func gitHub(t *testing.T, now func() time.Time, answer func(http.ResponseWriter)) (srv *httptest.Server, asked *atomic.Int64, wanted *atomic.Value) {
	t.Helper()
	asked, wanted = new(atomic.Int64), new(atomic.Value)
	srv = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		w.Header().Set("Date", now().UTC().Format(http.TimeFormat))
		claims := jwt.RegisteredClaims{}
		_, err := jwt.ParseWithClaims(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), &claims,
			func(*jwt.Token) (any, error) { return rsaKey().Public(), nil }, jwt.WithValidMethods([]string{"RS256"}),
			jwt.WithIssuer("123456"), jwt.WithIssuedAt(), jwt.WithExpirationRequired(), jwt.WithTimeFunc(now))
		var body map[string]any
		switch {
		case err != nil || claims.ExpiresAt.Sub(claims.IssuedAt.Time) > 10*time.Minute:
			http.Error(w, `{"message":"A JSON web token could not be decoded"}`, http.StatusUnauthorized)
		case r.Method != http.MethodPost || r.URL.Path != "/app/installations/7/access_tokens" || json.NewDecoder(r.Body).Decode(&body) != nil:
			http.NotFound(w, r)
		case answer != nil:
			answer(w)
		default:
			wanted.Store(body)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"token":"ghs_token%d","expires_at":%q}`, n, now().Add(time.Hour).Format(time.RFC3339))
		}
	}))
	t.Cleanup(srv.Close)
	return srv, asked, wanted
}

func gitHubScheme(t *testing.T, srv *httptest.Server, app string, now func() time.Time) sign.Scheme {
	t.Helper()
	s, err := sign.New(policyfile.Scheme{Type: policyfile.GitHub, GitHubApp: policyfile.GitHubApp{
		App: app, TokenURL: srv.URL + "/app/installations/7/access_tokens",
		Repositories: []string{"app"}, Permissions: map[string]string{"contents": "read"},
	}}, sign.Config{Transport: srv.Client().Transport, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestGitHubApp(t *testing.T) {
	var passed atomic.Int64
	now := func() time.Time { return noon.Add(time.Duration(passed.Load())) }
	srv, asked, wanted := gitHub(t, now, nil)
	s := gitHubScheme(t, srv, "123456", now)
	key := secret.New([]byte(pemOf(rsaKey())))
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{{0, "ghs_token1"}, {40 * time.Minute, "ghs_token1"}, {time.Hour - 20*time.Second, "ghs_token2"}} {
		passed.Store(int64(tt.after))
		ch, err := s.Sign(t.Context(), key, sign.Request{})
		if err != nil || ch.Set["Authorization"][0] != "Bearer "+tt.want || ch.Expose[0] != tt.want {
			t.Fatalf("after %v: %v, %v, want %s", tt.after, ch, err, tt.want)
		}
	}
	if asked.Load() != 2 {
		t.Errorf("asked %d times", asked.Load())
	}
	want := map[string]any{"repositories": []any{"app"}, "permissions": map[string]any{"contents": "read"}}
	if d := cmp.Diff(want, wanted.Load()); d != "" {
		t.Errorf("asked for (-want +got):\n%s", d)
	}
}

func TestGitHubAppRefuses(t *testing.T) {
	other := pemOf(must(generateRSA()))
	says := func(status int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	tests := []struct {
		name, app, key string
		answer         func(http.ResponseWriter)
		want           string
	}{
		{"another app", "999", pemOf(rsaKey()), nil, "it answered 401"},
		{"another key", "123456", other, nil, "it answered 401"},
		{"not a key", "123456", "ghp_0123456789", nil, "not a private key"},
		{"no permission", "123456", pemOf(rsaKey()), says(422, `{"message":"LEAK"}`), "it answered 422"},
		{"RD-01 a redirect", "123456", pemOf(rsaKey()), says(307, ""), "it answered 307"},
		{"no token", "123456", pemOf(rsaKey()), says(201, `{"expires_at":"2026-09-01T13:00:00Z"}`), "no token"},
		{"no end", "123456", pemOf(rsaKey()), says(201, `{"token":"LEAK"}`), "no token with an end"},
		{"an end that is past", "123456", pemOf(rsaKey()), says(201, `{"token":"LEAK","expires_at":"2026-09-01T11:00:00Z"}`), "ended already"},
		{"CR-12 a line break", "123456", pemOf(rsaKey()), says(201, `{"token":"LEAK\r\nX: y","expires_at":"2026-09-01T13:00:00Z"}`), "cannot stand"},
	}
	for _, tt := range tests {
		clock := func() time.Time { return noon }
		srv, _, _ := gitHub(t, clock, tt.answer)
		s := gitHubScheme(t, srv, tt.app, clock)
		ch, err := s.Sign(t.Context(), secret.New([]byte(tt.key)), sign.Request{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "LEAK") || len(ch.Set) > 0 {
			t.Errorf("%s: %v, %v, want an error with %q", tt.name, ch, err, tt.want)
		}
	}
}
