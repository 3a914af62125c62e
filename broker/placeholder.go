package broker

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"sallyport/control"
)

// knownPrefixes begin secrets that tools recognise and check for; the
// placeholder keeps them. The longest that fits counts.
var knownPrefixes = []string{
	"sk_test_", "sk_live_", "rk_test_", "rk_live_", "pk_test_", "pk_live_", "whsec_", // Stripe
	"sk-ant-api03-", "sk-ant-admin01-", "sk-ant-oat01-", "sk-ant-", "sk-proj-", "sk-svcacct-", "sk-or-v1-", "sk-", // Anthropic, OpenAI, OpenRouter
	"github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", // GitHub
	"glpat-", "gldt-", "glrt-", "glcbt-", // GitLab
	"xoxb-", "xoxp-", "xoxa-", "xoxr-", "xapp-1-", "xapp-", // Slack
	"AKIA", "ASIA", "AIza", "ya29.", "GOCSPX-", // AWS, Google
	"SG.", "key-", "npm_", "pypi-", "hf_", "r8_", "gsk_", "xai-", "pplx-", "dop_v1_", "shpat_", "shpss_", "figd_",
	"lin_api_", "ntn_", "secret_", "sntrys_", "dapi", "hvs.", "s.", "eyJ", "tfp_", "dckr_pat_", "PMAK-", "nvapi-",
}

// minRandom is the number of random characters of a placeholder, so that it is
// never met by chance and nobody guesses another run's.
const minRandom = 20

// maxShared is how many characters after the known prefix a placeholder may
// share with the secret by chance. It is not zero: a placeholder that always
// differs in one place would, over many runs, spell that place out.
const maxShared = 4

const (
	digits   = "0123456789"
	lowerHex = digits + "abcdef"
	upperHex = digits + "ABCDEF"
	lowers   = "abcdefghijklmnopqrstuvwxyz"
	uppers   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// alphabets from narrow to wide. The last one has what any tool accepts; a
// secret with other characters gets a placeholder without them.
var alphabets = []string{
	digits, lowerHex, upperHex, lowers, uppers, digits + lowers, digits + uppers, lowers + uppers, digits + lowers + uppers,
}

// newPlaceholder makes a stand-in that is shaped like the secret: its known
// prefix, its length, its kind of characters, its dots, and the hyphens of a
// UUID. Nothing else of the secret is in it.
func newPlaceholder(secret []byte) (string, error) {
	prefix := knownPrefix(string(secret))
	for range 8 {
		ph := prefix + draw(string(secret[len(prefix):]))
		if !tooAlike(ph, string(secret), len(prefix)) {
			return ph, nil
		}
	}
	return "", errors.New("could not make a placeholder that differs from the secret")
}

func knownPrefix(s string) string {
	best := ""
	for _, p := range knownPrefixes {
		if len(p) > len(best) && strings.HasPrefix(s, p) && len(s) >= len(p)+8 {
			best = p
		}
	}
	return best
}

// draw makes random characters in the shape of rest.
func draw(rest string) string {
	alphabet := alphabetOf(rest)
	keep := "."
	if isUUID(rest) {
		keep, alphabet = "-", lowerHex
	}
	kept := 0
	for i := range len(rest) {
		kept += strings.Count(keep, rest[i:i+1])
	}
	out := randomText(max(len(rest), minRandom+kept), alphabet)
	for i := range len(rest) {
		if strings.IndexByte(keep, rest[i]) >= 0 {
			out[i] = rest[i]
		}
	}
	return string(out)
}

// alphabetOf returns the narrowest alphabet that has every letter and digit of s.
func alphabetOf(s string) string {
	for _, a := range alphabets {
		fits := true
		for i := range len(s) {
			c := s[i]
			if isAlnum(c) && strings.IndexByte(a, c) < 0 {
				fits = false
				break
			}
		}
		if fits {
			return a
		}
	}
	return alphabets[len(alphabets)-1]
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		hyphen := i == 8 || i == 13 || i == 18 || i == 23
		if hyphen != (s[i] == '-') || !hyphen && strings.IndexByte(lowerHex, s[i]) < 0 {
			return false
		}
	}
	return true
}

// randomText draws characters of an alphabet, each equally likely.
func randomText(count int, alphabet string) []byte {
	out := make([]byte, 0, count)
	limit := 256 / len(alphabet) * len(alphabet) // above it, the remainder would favour the first characters
	var buf [64]byte
	for len(out) < count {
		_, _ = rand.Read(buf[:]) // crypto/rand.Read never fails: it ends the program instead
		for _, b := range buf {
			if n := int(b); n < limit && len(out) < count {
				out = append(out, alphabet[n%len(alphabet)])
			}
		}
	}
	return out
}

// tooAlike reports whether a placeholder gives the secret away.
func tooAlike(ph, secret string, prefix int) bool {
	if strings.Contains(ph, secret) || strings.Contains(secret, ph) {
		return true
	}
	shared := 0
	for prefix+shared < min(len(ph), len(secret)) && ph[prefix+shared] == secret[prefix+shared] {
		shared++
	}
	return shared > maxShared
}

// checkPlaceholders refuses a grant one of whose placeholders could not be found.
func checkPlaceholders(g control.Grant) error {
	errs := []error{checkPlaceholder(g.Placeholder)}
	for _, v := range g.More {
		errs = append(errs, checkPlaceholder(v.Placeholder))
	}
	return errors.Join(errs...)
}

// checkPlaceholder refuses a placeholder, from a cell file, that could not be
// found in a request.
func checkPlaceholder(s string) error {
	if len(s) < minRandom {
		return fmt.Errorf("a placeholder of %d characters is too short to be recognised", len(s))
	}
	return nil
}
