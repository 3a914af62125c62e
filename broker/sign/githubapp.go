package sign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// gitHubApp gets an installation's tokens with an app's private key: "Generating
// an installation access token for a GitHub App" in GitHub's documentation. A
// token is good for what the credential document asks for, and not for more than
// the installation has.
type gitHubApp struct {
	spec      policyfile.GitHubApp
	transport http.RoundTripper
	now       func() time.Time
	*minter
}

const (
	// appBackdate and appLife keep the app's own token within the ten minutes
	// that GitHub allows, for clocks that differ.
	appBackdate = time.Minute
	appLife     = 9 * time.Minute
)

func newGitHubApp(s policyfile.Scheme, cfg Config) (Scheme, error) {
	switch {
	case s.GitHubApp.App == "" || s.GitHubApp.TokenURL == "":
		return nil, errors.New(`type "github-app" needs an app and an installation`)
	case cfg.Transport == nil || cfg.Now == nil:
		return nil, errors.New(`type "github-app" needs a way out for the broker, and there is none`)
	}
	g := &gitHubApp{spec: s.GitHubApp, transport: cfg.Transport, now: cfg.Now}
	g.minter = newMinter(cfg, g.mint)
	return g, nil
}

func (*gitHubApp) Place() control.Place {
	return control.Place{Type: "github-app", Header: "Authorization"}
}

// Check implements [Scheme]: the key has to sign.
func (*gitHubApp) Check(v secret.Value) error {
	return checkSigns("RS256", v)
}

// Shapes implements [Shaper]: the sandbox sees an installation's token.
func (*gitHubApp) Shapes(secret.Value) ([]string, error) {
	return []string{"ghs_0000aaaa1111BBBB2222cccc3333DDDD4444"}, nil
}

func (g *gitHubApp) Sign(ctx context.Context, v secret.Value, _ Request) (Changes, error) {
	token, err := g.minter.get(ctx, v)
	if err != nil {
		return Changes{}, fmt.Errorf("getting a token from %s: %w", g.spec.TokenURL, err)
	}
	return Changes{Set: map[string][]string{"Authorization": {"Bearer " + token}}, Expose: []string{token}}, nil
}

// mint asks once. Nothing of an answer but its status is put into an error.
func (g *gitHubApp) mint(ctx context.Context, v secret.Value) (minted, error) {
	now := g.now()
	claims := map[string]any{"iss": g.spec.App, "iat": now.Add(-appBackdate).Unix(), "exp": now.Add(appLife).Unix()}
	app, err := jwsAlgorithms["RS256"].jwt(map[string]any{"alg": "RS256", "typ": "JWT"}, claims, v)
	if err != nil {
		return minted{}, err
	}
	body, err := json.Marshal(struct {
		Repositories []string          `json:"repositories,omitempty"`
		Permissions  map[string]string `json:"permissions,omitempty"`
	}{g.spec.Repositories, g.spec.Permissions})
	if err != nil {
		return minted{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.spec.TokenURL, bytes.NewReader(body))
	if err != nil {
		return minted{}, err
	}
	req.Header.Set("Authorization", "Bearer "+app)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	req.Header.Set("User-Agent", "sallyport")
	got, err := roundTrip(ctx, g.transport, req)
	if err != nil {
		return minted{}, err
	}
	return g.read(got)
}

func (g *gitHubApp) read(got told) (minted, error) {
	if got.status != http.StatusCreated {
		return minted{}, got.refusal("", g.now())
	}
	var ans struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	switch {
	case json.Unmarshal(got.body, &ans) != nil || ans.Token == "" || ans.ExpiresAt.IsZero():
		return minted{}, errors.New("its answer holds no token with an end")
	case checkHeaderSafe(secret.New([]byte(ans.Token))) != nil:
		return minted{}, errors.New("its token cannot stand in a header")
	}
	life := ans.ExpiresAt.Sub(got.clock(g.now()))
	if life <= 0 {
		return minted{}, errors.New("its token has ended already")
	}
	return minted{ans.Token, life}, nil
}
