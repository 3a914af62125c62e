package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"

	"sallyport/broker/secret"
)

// canonical is a request in the form in which AWS and those who took after it
// sign requests: method, path, query, fields, their names, and the body's hash.
type canonical struct {
	method, path, query string
	fields              map[string]string // lower-case name → value
	payload             string
}

// names returns the names of the signed fields, as they stand in a signature.
func (c *canonical) names() string { return strings.Join(sortedKeys(c.fields), ";") }

// sum returns the hash of the canonical request in hexadecimal.
func (c *canonical) sum() string {
	var lines strings.Builder
	for _, name := range sortedKeys(c.fields) {
		lines.WriteString(name + ":" + c.fields[name] + "\n")
	}
	return hashHex(strings.Join([]string{c.method, c.path, c.query, lines.String(), c.names(), c.payload}, "\n"))
}

func hashHex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// pick adds the fields of a request that choose names, given in lower case.
func (c *canonical) pick(h http.Header, choose func(name string) bool) {
	for name, values := range h {
		if n := lower(name); choose(n) {
			c.fields[n] = joinField(values)
		}
	}
}

// set adds the fields that will be set.
func (c *canonical) set(set map[string][]string) {
	for name, values := range set {
		c.fields[lower(name)] = joinField(values)
	}
}

// readQuery reads a query as signers do: a semicolon is no separator.
func readQuery(raw string) (url.Values, error) {
	return url.ParseQuery(strings.ReplaceAll(raw, ";", "%3B"))
}

// scoped is what stands behind Credential= of a vendor's signature, without the id.
func scoped(authorization, algorithm string) []string {
	rest, ok := strings.CutPrefix(strings.TrimSpace(authorization), algorithm+" ")
	if !ok {
		return nil
	}
	credential, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(rest), "Credential="), ",")
	return strings.Split(credential, "/")[1:]
}

// beginPair is how the signatures of Tencent, Alibaba and Volcengine begin: with the
// pair of keys, and a canonical request without its fields but the host.
func beginPair(v secret.Value, names pairNames, r Request, path string) (keyPair, canonical, error) {
	k, err := readKeyPair(v, names)
	if err != nil {
		return keyPair{}, canonical{}, err
	}
	params, err := readQuery(r.Query)
	if err != nil {
		return keyPair{}, canonical{}, unfit("the query has a broken escape")
	}
	fields := map[string]string{"host": r.Endpoint.Authority(443)}
	return k, canonical{method: r.Method, path: path, query: awsQuery(params), payload: r.Payload, fields: fields}, nil
}

// chained makes a key for one scope: each part is signed with the key before it.
func chained(key string, parts ...string) []byte {
	out := []byte(key)
	for _, part := range parts {
		out = hmacSHA256(out, part)
	}
	return out
}
