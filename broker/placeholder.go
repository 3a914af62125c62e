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

// newPlaceholder makes a stand-in for a token: its known prefix, its length, its
// kind of characters, the dots, and the hyphens of a UUID, are those of the secret.
// Nothing else of it is in it.
func newPlaceholder(secret []byte) (string, error) {
	prefix := knownPrefix(string(secret))
	for range 8 {
		ph := withChecksum(prefix+drawAfter(prefix, string(secret[len(prefix):])), prefix)
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

// separators are characters that divide tokens of a kind into parts of their own;
// patterns for such tokens insist on them.
var separators = map[string]string{
	"github_pat_": "_", "xoxb-": "-", "xoxp-": "-", "xoxa-": "-", "xoxr-": "-", "xapp-1-": "-", "xapp-": "-",
}

// fewer are kinds of tokens whose random part is short, and always as long.
var fewer = map[string]int{"AKIA": 16, "ASIA": 16}

// draw makes random characters in the shape of rest.
func draw(rest string) string { return drawAfter("", rest) }

func drawAfter(prefix, rest string) string {
	keep, least := "."+separators[prefix], minRandom
	if n := fewer[prefix]; n > 0 {
		least = n
	}
	if isUUID(rest) {
		keep = "-"
	}
	padding := len(rest) - len(strings.TrimRight(rest, "="))
	body := rest[:len(rest)-padding]
	var out []byte
	random := 0
	for body != "" {
		n := strings.IndexAny(body, keep)
		if n < 0 {
			n = len(body)
		}
		alphabet := alphabetOf(body[:n])
		if isUUID(rest) {
			alphabet = lowerHex
		}
		out = append(out, randomText(n, alphabet)...)
		random += n
		if n == len(body) {
			break
		}
		out, body = append(out, body[n]), body[n+1:]
	}
	// What is too short to be recognised is made longer. Padding counts on a
	// length, and goes then.
	if random < least {
		return string(append(out, randomText(least-random, alphabetOf(rest))...))
	}
	return string(out) + rest[len(rest)-padding:]
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
