package sign

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
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
