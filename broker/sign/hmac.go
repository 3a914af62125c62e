package sign

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // some APIs still sign with it; HMAC-SHA1 is not broken
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// hmacSigner signs a string that the credential document makes of the request:
// HMAC (RFC 2104) as webhooks and exchanges use it.
type hmacSigner struct{ spec policyfile.HMAC }

var hmacHashes = map[string]func() hash.Hash{
	"sha1": sha1.New, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
}

func newHMAC(s policyfile.Scheme) (Scheme, error) {
	h := s.HMAC
	name, err := headerName(h.Header)
	switch {
	case err != nil:
		return nil, err
	case hmacHashes[h.Algorithm] == nil:
		return nil, fmt.Errorf("algorithm %q is not a hash that is signed with", h.Algorithm)
	case len(h.Template) == 0 || !h.Value.Has("signature"):
		return nil, errors.New(`type "hmac" needs a template, and a value with {signature}`)
	}
	h.Header = name
	for field := range h.Set {
		if _, err := headerName(field); err != nil {
			return nil, err
		}
	}
	return hmacSigner{h}, nil
}

func (h hmacSigner) Place() control.Place {
	return control.Place{
		Type: "hmac", Header: h.spec.Header, Fields: true, Body: h.spec.Template.Has("body"),
		Payload: h.spec.Template.Has("body_sha256") || h.spec.Template.Has("body_sha256_base64"),
	}
}

// key returns the octets of the secret.
func (h hmacSigner) key(v secret.Value) (key []byte, err error) {
	text := strings.TrimSpace(string(v.Reveal()))
	switch h.spec.Key {
	case "hex":
		key, err = hex.DecodeString(text)
	case "base64":
		key, err = base64.StdEncoding.DecodeString(text)
	default:
		key = v.Reveal()
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the secret is not in %s", h.spec.Key) // the cause may quote it
	case len(key) < minHMACKey:
		return nil, fmt.Errorf("the secret has fewer than %d octets", minHMACKey)
	}
	return key, nil
}

// minHMACKey is what keeps a key from being guessed; less is not a key.
const minHMACKey = 8

func (h hmacSigner) Check(v secret.Value) error {
	_, err := h.key(v)
	return err
}

func (h hmacSigner) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	key, err := h.key(v)
	if err != nil {
		return Changes{}, err
	}
	values := h.values(r)
	mac := hmac.New(hmacHashes[h.spec.Algorithm], key)
	mac.Write([]byte(h.spec.Template.Fill(values)))
	values.known["signature"] = hex.EncodeToString(mac.Sum(nil))
	if h.spec.Encoding == "base64" {
		values.known["signature"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	set := map[string][]string{h.spec.Header: {h.spec.Value.Fill(values)}}
	for name, t := range h.spec.Set {
		set[http.CanonicalHeaderKey(name)] = []string{t.Fill(values)}
	}
	for name, value := range set {
		if !httpguts.ValidHeaderFieldValue(value[0]) {
			return Changes{}, fmt.Errorf("what goes into %s cannot stand in a header", name)
		}
	}
	return Changes{Set: set}, nil
}

// hmacValues are what stands for the names in templates.
type hmacValues struct {
	known  map[string]string
	header http.Header
}

// Value implements [policyfile.Values].
func (v *hmacValues) Value(name, of string) string {
	if name == "header" {
		return joinField(v.header[http.CanonicalHeaderKey(of)])
	}
	return v.known[name]
}

func (h hmacSigner) values(r Request) *hmacValues {
	target := cmp.Or(r.Path.String(), "/")
	if r.Query != "" {
		target += "?" + r.Query
	}
	known := map[string]string{
		"method": r.Method, "host": r.Endpoint.Authority(443), "path": cmp.Or(r.Path.String(), "/"), "query": r.Query, "target": target,
		"timestamp": timestamp(h.spec.Time, r.Now), "nonce": rand.Text(), "key_id": h.spec.KeyID,
		"body": string(r.Body), "body_sha256": r.Payload,
	}
	if sum, err := hex.DecodeString(r.Payload); err == nil {
		known["body_sha256_base64"] = base64.StdEncoding.EncodeToString(sum)
	}
	return &hmacValues{known: known, header: r.Header}
}

func timestamp(form string, now time.Time) string {
	switch form {
	case "unix_ms":
		return strconv.FormatInt(now.UnixMilli(), 10)
	case "rfc3339":
		return now.UTC().Format(time.RFC3339)
	case "http":
		return now.UTC().Format(http.TimeFormat)
	default:
		return strconv.FormatInt(now.Unix(), 10)
	}
}
