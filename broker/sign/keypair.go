package sign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"sallyport/broker/secret"
)

// keyPair is an id and a secret key as clouds give them out, and the token of
// temporary ones.
type keyPair struct{ id, secret, token string }

// pairNames are the names under which a vendor's own tools keep a pair of keys.
type pairNames struct{ id, secret, token string }

var (
	tencentNames = pairNames{"SecretId", "SecretKey", "Token"}
	alibabaNames = pairNames{"AccessKeyId", "AccessKeySecret", "SecurityToken"}
	volcNames    = pairNames{"AccessKeyId", "SecretAccessKey", "SessionToken"}
)

var pairID = regexp.MustCompile(`^[A-Za-z0-9_-]{8,128}$`)

// readKeyPair reads a JSON object with these names, or lines NAME = VALUE. Other
// members of the object are not looked at; other lines are refused.
func readKeyPair(v secret.Value, n pairNames) (k keyPair, err error) {
	text := bytes.TrimSpace(v.Reveal())
	in := map[string]any{}
	if bytes.HasPrefix(text, []byte("{")) {
		if json.Unmarshal(text, &in) != nil {
			return keyPair{}, errors.New("the secret begins like JSON and is none")
		}
	} else if err := readLines(in, string(text), n); err != nil {
		return keyPair{}, err
	}
	k.id, _ = in[n.id].(string)
	k.secret, _ = in[n.secret].(string)
	k.token, _ = in[n.token].(string)
	switch {
	case !pairID.MatchString(k.id):
		return keyPair{}, fmt.Errorf("the secret holds no %s", n.id)
	case len(k.secret) < 16 || checkHeaderSafe(secret.New([]byte(k.secret))) != nil:
		return keyPair{}, fmt.Errorf("the secret holds no %s", n.secret)
	case k.token != "" && checkHeaderSafe(secret.New([]byte(k.token))) != nil:
		return keyPair{}, fmt.Errorf("%s cannot stand in a header", n.token)
	}
	return k, nil
}

func readLines(in map[string]any, text string, n pairNames) error {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		name = strings.TrimSpace(name)
		switch {
		case name == "" || name[0] == '#':
			continue
		case name != n.id && name != n.secret && name != n.token:
			return fmt.Errorf("the secret has a line that is none of %s, %s, %s", n.id, n.secret, n.token)
		case in[name] != nil:
			return fmt.Errorf("the secret has %s twice", name)
		}
		in[name] = strings.TrimSpace(value)
	}
	return nil
}

// shapes returns what a sandbox gets stand-ins for.
func (n pairNames) shapes(v secret.Value) ([]string, error) {
	k, err := readKeyPair(v, n)
	return []string{k.id, k.secret}, err
}

func (n pairNames) check(v secret.Value) error {
	_, err := readKeyPair(v, n)
	return err
}

// exposed is what leaves the broker: the secret key does not.
func (k keyPair) exposed() []string {
	if k.token != "" {
		return []string{k.id, k.token}
	}
	return []string{k.id}
}

// setToken puts the token of temporary keys into a header, or makes sure that
// there is none.
func (k keyPair) setToken(c *Changes, header string) {
	if k.token != "" {
		c.Set[header] = []string{k.token}
		return
	}
	c.Remove = append(c.Remove, header)
}
