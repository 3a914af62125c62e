package clients_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	registryHost     = "registry.test"
	registryPassword = "dckr_pat_the-true-password-of-the-bot"
	registryKey      = "the token server's own key, 32 octets"
)

// registryServer is a registry with a token server beside it ("Token authentication" in
// the specification of the Distribution project). It keeps what go-containerregistry's
// own registry keeps; tokens are made and verified with golang-jwt, and each is good
// for what the one request needs, by the method and the repository in its path.
type registryServer struct {
	store http.Handler

	mu      sync.Mutex
	issued  []string
	scopes  []string // that tokens were asked for
	refused []string
}

// auth is the token server. The bot may do anything in team/app, and nothing elsewhere.
func (s *registryServer) auth(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	user, password, _ := r.BasicAuth()
	if r.URL.Path != "/token" || user != "bot" || password != registryPassword || r.URL.Query().Get("service") != registryHost {
		s.refused = append(s.refused, fmt.Sprintf("token for %s:%s", user, password))
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	scope := r.URL.Query().Get("scope")
	s.scopes = append(s.scopes, scope)
	granted := ""
	if strings.HasPrefix(scope, "repository:team/app:") {
		granted = scope
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"aud": registryHost, "scope": granted, "n": len(s.issued), "exp": time.Now().Add(5 * time.Minute).Unix(),
	}).SignedString([]byte(registryKey))
	if err != nil {
		panic(err)
	}
	s.issued = append(s.issued, token)
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"token":%q,"expires_in":300}`, token)
}

// ServeHTTP implements [http.Handler]: the registry.
func (s *registryServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), claims,
		func(*jwt.Token) (any, error) { return []byte(registryKey), nil }, jwt.WithValidMethods([]string{"HS256"}), jwt.WithAudience(registryHost), jwt.WithExpirationRequired())
	scope, _ := claims["scope"].(string)
	_, actions, _ := strings.Cut(scope, "repository:team/app:")
	need := "push"
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		need = "pull"
	}
	may := r.URL.Path == "/v2/" || strings.HasPrefix(r.URL.Path, "/v2/team/app/") && slices.Contains(strings.Split(actions, ","), need)
	if err != nil || !may {
		s.mu.Lock()
		s.refused = append(s.refused, fmt.Sprintf("%s %s with scope %q: %v", r.Method, r.URL.Path, scope, err))
		s.mu.Unlock()
		w.Header().Set("Www-Authenticate", `Bearer realm="https://auth.test/token",service="`+registryHost+`"`)
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`)
		return
	}
	r.Header.Del("Authorization")
	s.store.ServeHTTP(w, r)
}

// buildSDK builds the program that uses the vendors' libraries for Go.
func buildSDK(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sdk")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../sdk", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// TestGoLibraries: programs with the libraries of vendors push and pull images, and put
// and get objects; servers that verify what they get are the judge.
func TestGoLibraries(t *testing.T) {
	sdk := buildSDK(t)
	t.Run("go-containerregistry", func(t *testing.T) { testRegistry(t, sdk) })
	t.Run("aws-sdk-go-v2", func(t *testing.T) {
		g, b := newAWS(t, awsToken)
		if got := g.must("", sdk, "s3", "box", "dir/a b", "some text"); got != "some text" || b.get("dir/a b") != "some text" {
			t.Errorf("got %q, the bucket has %q", got, b.get("dir/a b"))
		}
		before := len(b.served)
		g.env = append(g.env, "AWS_ACCESS_KEY_ID=AKIAATTACKER00000000", "AWS_SECRET_ACCESS_KEY=attackers/secret/key/0000000000000000000")
		if out, err := g.command("", sdk, "s3", "box", "dir/a b", "x"); err == nil || !slices.Contains(g.reasons(), "foreign_credential") || len(b.served) != before {
			t.Errorf("SG-07 another's keys: %v, refusals %q, %s", err, g.reasons(), out)
		}
		g.holdsNone(awsSecret, awsToken)
	})
}

func testRegistry(t *testing.T, sdk string) {
	t.Helper()
	s := &registryServer{store: startOrigin(t, sdk, "registry", "", "", "")}
	g := newGateway(t, []origin{{host: registryHost, handler: s}, {host: "auth.test", handler: http.HandlerFunc(s.auth)}}, []credential{{
		name: "registry", host: registryHost, secret: registryPassword,
		doc: "type: oci-registry\noci-registry: {token_url: \"https://auth.test/token\", service: registry.test, username: bot}\nplaceholder: {env: REGISTRY_PASSWORD}",
	}})
	pushed := g.must("", sdk, "push", registryHost+"/team/app:v1")
	if pulled := g.must("", sdk, "pull", registryHost+"/team/app:v1"); pulled != pushed || !strings.HasPrefix(pulled, "sha256:") {
		t.Errorf("pushed %q, pulled %q", pushed, pulled)
	}
	if len(s.refused) > 0 {
		t.Errorf("the servers refused %q", s.refused)
	}
	slices.Sort(s.scopes)
	if got := slices.Compact(slices.Clone(s.scopes)); !slices.Equal(got, []string{"", "repository:team/app:pull", "repository:team/app:pull,push"}) || len(s.scopes) != len(got) {
		t.Errorf("tokens were asked for with scopes %q, want each once", s.scopes)
	}
	// Twins: what the bot may not, and who brings a password of his own.
	if out, err := g.command("", sdk, "pull", registryHost+"/team/secret:v1"); err == nil || !strings.Contains(out, "UNAUTHORIZED") || len(s.refused) == 0 {
		t.Errorf("another repository: %v, %s", err, out)
	}
	g.env = append(g.env, "REGISTRY_PASSWORD=somebody-elses-password")
	before := len(s.issued)
	if out, err := g.command("", sdk, "pull", registryHost+"/team/app:v1"); err == nil || !slices.Contains(g.reasons(), "foreign_credential") || len(s.issued) != before {
		t.Errorf("SG-07 another's password: %v, refusals %q, %s", err, g.reasons(), out)
	}
	g.holdsNone(append(s.issued, registryPassword)...)
}
