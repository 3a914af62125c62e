package broker

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"hash/crc32"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// standIn is what a sandbox gets for a secret: text of the same shape, and the
// parts of it that are leaks by themselves where the text is a document.
type standIn struct {
	text  string
	parts []string
}

// newStandIn makes a stand-in in the shape of the secret: a PEM or JSON document,
// a connection string, a token. Clients parse such documents, and must find what
// they look for; nothing that is secret is taken over.
func newStandIn(secret []byte) (standIn, error) {
	text := string(secret)
	switch {
	case strings.HasPrefix(strings.TrimSpace(text), "{"):
		if s, ok := jsonStandIn(secret); ok {
			return s, nil
		}
	case strings.Contains(text, "-----BEGIN "):
		if s, ok := pemStandIn(secret); ok {
			return s, nil
		}
	case strings.HasPrefix(text, "eyJ") && strings.Count(text, ".") == 2:
		if t, ok := tokenStandIn(text); ok {
			return standIn{text: t}, nil
		}
	}
	if s, ok := connectionStandIn(text); ok {
		return s, nil
	}
	ph, err := newPlaceholder(secret)
	return standIn{text: ph}, err
}

// maxParts is how many lines of a key are leaks by themselves.
const maxParts = 4

// pemStandIn makes a fresh key of the same kind for each private key of a bundle.
// What else is in it (certificates) is left out: it would not fit the key.
func pemStandIn(secret []byte) (standIn, bool) {
	var out bytes.Buffer
	for block, rest := pem.Decode(secret); block != nil; block, rest = pem.Decode(rest) {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		der, err := freshKey(block)
		clear(block.Bytes)
		if err != nil || pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: der}) != nil {
			return standIn{}, false
		}
	}
	if out.Len() == 0 {
		return standIn{}, false
	}
	s := standIn{text: strings.TrimRight(out.String(), "\n")}
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSpace(line)
		// The first line says what kind of key it is, and is the same for many.
		if !strings.HasPrefix(line, "-----") && len(line) == 64 && !strings.HasPrefix(line, "MI") && len(s.parts) < maxParts {
			s.parts = append(s.parts, line)
		}
	}
	return s, true
}

// freshKey makes a key of the kind of a block, in its encoding; for a kind that is
// not known, as many random octets.
func freshKey(block *pem.Block) ([]byte, error) {
	switch block.Type {
	case "RSA PRIVATE KEY":
		if _, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
			k, err := rsa.GenerateKey(rand.Reader, standInBits)
			if err != nil {
				return nil, err
			}
			return x509.MarshalPKCS1PrivateKey(k), nil
		}
	case "EC PRIVATE KEY":
		if old, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
			k, err := ecdsa.GenerateKey(old.Curve, rand.Reader)
			if err != nil {
				return nil, err
			}
			return x509.MarshalECPrivateKey(k)
		}
	case "PRIVATE KEY":
		if old, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			k, err := freshAs(old)
			if err != nil {
				return nil, err
			}
			return x509.MarshalPKCS8PrivateKey(k)
		}
	}
	b := make([]byte, len(block.Bytes))
	_, err := rand.Read(b)
	return b, err
}

// standInBits is the size of an RSA key that signs nothing of worth: a larger one
// takes long to make.
const standInBits = 2048

func freshAs(old any) (crypto.PrivateKey, error) {
	switch old := old.(type) {
	case *rsa.PrivateKey:
		return rsa.GenerateKey(rand.Reader, standInBits)
	case *ecdsa.PrivateKey:
		return ecdsa.GenerateKey(old.Curve, rand.Reader)
	case ed25519.PrivateKey:
		_, k, err := ed25519.GenerateKey(rand.Reader)
		return k, err
	default:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
}

// publicFields of a key file are addresses and names that clients read before they
// ask anybody; the rest of its texts and numbers is made anew. They are those of a
// Google service account, and what says which kind of file it is.
var publicFields = []string{
	"type", "project_id", "client_email", "client_id", "auth_uri", "token_uri", "auth_provider_x509_cert_url",
	"client_x509_cert_url", "universe_domain", "version", "Version",
}

// maxDepth bounds the nesting of a document.
const maxDepth = 16

// jsonStandIn makes a document with the same fields.
func jsonStandIn(secret []byte) (standIn, bool) {
	dec := json.NewDecoder(bytes.NewReader(secret))
	dec.UseNumber()
	var doc map[string]any
	if dec.Decode(&doc) != nil || dec.More() {
		return standIn{}, false
	}
	var parts []string
	next, err := remake("", doc, &parts, 0)
	if err != nil {
		return standIn{}, false
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if enc.Encode(next) != nil || len(parts) == 0 {
		return standIn{}, false
	}
	return standIn{strings.TrimRight(out.String(), "\n"), parts}, true
}

// remake makes the value of a field anew, and notes what of it is a leak by itself.
func remake(name string, v any, parts *[]string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("nested too deep")
	}
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			y, err := remake(k, x, parts, depth+1)
			if err != nil {
				return nil, err
			}
			out[k] = y
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			y, err := remake(name, x, parts, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = y
		}
		return out, nil
	case string:
		if slices.Contains(publicFields, name) || v == "" {
			return v, nil
		}
		return remakeText(v, parts)
	case json.Number:
		return json.Number("1" + string(randomText(max(0, min(len(v), 15)-1), digits))), nil
	default: // true, false and null tell nothing
		return v, nil
	}
}

func remakeText(v string, parts *[]string) (string, error) {
	if strings.Contains(v, "-----BEGIN ") {
		if s, ok := pemStandIn([]byte(v)); ok {
			*parts = append(*parts, s.parts...)
			return s.text + "\n", nil
		}
	}
	if len(v) < minRandom { // it could not be told from other text
		return string(randomText(len(v), alphabetOf(v))), nil
	}
	ph, err := newPlaceholder([]byte(v))
	*parts = append(*parts, ph)
	return ph, err
}

// tokenStandIn makes a JSON Web Token (RFC 7519) that parses, in force for long,
// with the algorithm of the secret and nothing else of it.
func tokenStandIn(secret string) (string, bool) {
	head, _, _ := strings.Cut(secret, ".")
	signature := secret[strings.LastIndexByte(secret, '.')+1:]
	raw, err := base64.RawURLEncoding.DecodeString(head)
	var h struct {
		Alg string `json:"alg"`
	}
	if err != nil || json.Unmarshal(raw, &h) != nil {
		return "", false
	}
	if !tokenAlgorithm.MatchString(h.Alg) {
		h.Alg = "RS256"
	}
	header := `{"alg":"` + h.Alg + `","typ":"JWT"}`
	payload := `{"iat":1767225600,"exp":4102444800,"sub":"placeholder","jti":"` + string(randomText(minRandom, digits+lowers+uppers)) + `"}`
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(header)) + "." + enc([]byte(payload)) + "." + string(randomText(max(len(signature), minRandom), digits+lowers+uppers)), true
}

var tokenAlgorithm = regexp.MustCompile(`^(HS|RS|PS|ES)(256|384|512)$|^EdDSA$`)

// connectionSecret are the settings of connection strings that hold secrets: of
// libpq and ADO, and of Azure's services.
var connectionSecret = regexp.MustCompile(`(?i)\b(password|pwd|accountkey|sharedaccesskey|sharedaccesssignature|sslpassword|api_?key|secret|token)(\s*=\s*)('[^']*'|[^;&\s']+)`)

// connectionStandIn takes over where a connection string leads, and makes its
// password anew.
func connectionStandIn(secret string) (standIn, bool) {
	var s standIn
	fresh := func(old string) string {
		ph := draw(old)
		s.parts = append(s.parts, ph)
		return ph
	}
	u, err := url.Parse(secret)
	if err == nil && u.Scheme != "" && u.Host != "" {
		if old, ok := u.User.Password(); ok && old != "" {
			ph := fresh(old)
			before, after, _ := strings.Cut(secret, "@"+u.Host)
			at := strings.LastIndexByte(before, ':')
			s.text = before[:at+1] + ph + "@" + u.Host + connectionSecret.ReplaceAllStringFunc(after, settingStandIn(fresh))
			return s, true
		}
	}
	if err == nil && u.Scheme != "" && u.Host != "" || strings.Count(secret, "=") < 2 {
		return standIn{}, false
	}
	s.text = connectionSecret.ReplaceAllStringFunc(secret, settingStandIn(fresh))
	return s, len(s.parts) > 0
}

func settingStandIn(fresh func(string) string) func(string) string {
	return func(setting string) string {
		m := connectionSecret.FindStringSubmatch(setting)
		return m[1] + m[2] + fresh(strings.Trim(m[3], "'"))
	}
}

// checked are kinds of tokens that end in six characters of a checksum: CRC-32
// (IEEE) of the thirty before it, in base 62. Tools that look for leaked tokens, and
// some clients, check it.
var checked = []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "npm_"}

const checkedLen = 36

// withChecksum gives a placeholder of such a kind the checksum that its tokens have.
func withChecksum(ph, prefix string) string {
	if !slices.Contains(checked, prefix) || len(ph) != len(prefix)+checkedLen {
		return ph
	}
	random := ph[len(prefix) : len(ph)-6]
	sum, out := crc32.ChecksumIEEE([]byte(random)), []byte("000000")
	const base62 = digits + uppers + lowers
	for i := len(out) - 1; i >= 0; i-- {
		out[i], sum = base62[sum%62], sum/62
	}
	return prefix + random + string(out)
}
