package sign

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// jwtBearer makes a token of its own for each request: a JSON Web Token
// (RFC 7519) with the claims of the credential document, signed with the secret.
type jwtBearer struct {
	spec policyfile.JWT
	alg  jwsAlgorithm
}

// jwtBackdate is for servers whose clocks are behind.
const jwtBackdate = 30 * time.Second

func newJWT(s policyfile.Scheme) (Scheme, error) {
	alg, ok := jwsAlgorithms[s.JWT.Algorithm]
	if !ok { // none among them: JW-01
		return nil, fmt.Errorf("algorithm %q is not one that a token is signed with", s.JWT.Algorithm)
	}
	if s.JWT.Life <= 0 || s.JWT.Life > maxJWTLife {
		return nil, fmt.Errorf("a token holds from 1 to %d seconds, not %d", maxJWTLife, s.JWT.Life)
	}
	return jwtBearer{s.JWT, alg}, nil
}

// maxJWTLife is an hour: a token is made for one request.
const maxJWTLife = 3600

func (jwtBearer) Place() control.Place { return control.Place{Type: "jwt", Header: "Authorization"} }

// Check implements [Scheme]: the key has to sign.
func (j jwtBearer) Check(v secret.Value) error {
	_, err := j.alg.sign([]byte("a trial"), v)
	return err
}

// Shapes implements [Shaper]: the sandbox sees something like a token, not a key.
func (jwtBearer) Shapes(secret.Value) ([]string, error) {
	return []string{someToken}, nil
}

func (j jwtBearer) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	header := map[string]any{"alg": j.spec.Algorithm, "typ": "JWT"}
	if j.spec.KeyID != "" {
		header["kid"] = j.spec.KeyID
	}
	claims := map[string]any{
		"iat": r.Now.Add(-jwtBackdate).Unix(), "exp": r.Now.Add(time.Duration(j.spec.Life) * time.Second).Unix(), "jti": rand.Text(),
	}
	for name, value := range j.spec.Claims {
		claims[name] = value
	}
	token, err := j.alg.jwt(header, claims, v)
	if err != nil {
		return Changes{}, err
	}
	return Changes{Set: map[string][]string{"Authorization": {"Bearer " + token}}, Expose: []string{token}}, nil
}
