package capture

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
)

// secretHeaders authenticate, or hold what does.
var secretHeaders = []string{
	"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "WWW-Authenticate", "Proxy-Authenticate", "Authentication-Info",
	"X-Api-Key", "Api-Key", "X-Auth-Token", "X-Amz-Security-Token", "X-Goog-Api-Key", "X-Vault-Token", "Private-Token",
}

// secretFields are what APIs call secrets in what is sent and answered, as [bare]
// spells them.
var secretFields = []string{
	"password", "passwd", "passphrase", "secret", "clientsecret", "token", "accesstoken", "refreshtoken", "idtoken",
	"apikey", "privatekey", "clientassertion", "assertion", "authorization",
	"authtoken", "sessiontoken", "securitytoken", "xamzsecuritytoken", "secretkey", "secretaccesskey", "devicecode", "codeverifier",
	"xamzsignature", "xgoogsignature", "sig",
}

// Left stands where something was left out.
const Left = "[left out]"

// fields are the names of members of JSON and fields of forms whose values are left
// out. One that is cut off by the end of the text is found too. It takes time in
// proportion to a text, whatever stands in it.
type fields map[string]bool

func fieldsOf(more []string) fields {
	f := fields{}
	for _, name := range append(more, secretFields...) {
		f[bare(name)] = true
	}
	return f
}

// secretHeader reports whether a header's name ends like one that authenticates.
func secretHeader(name string) bool {
	name = bare(name)
	for _, end := range []string{"token", "secret", "password", "apikey", "accesskey", "signature"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

// bare is a name without what its spellings differ in: access_token, accessToken
// and Access-Token are one.
func bare(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '_' || r == '-':
			return -1
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// secret reports whether a name is one of f, or a part of it is: user[password].
func (f fields) secret(name string) bool {
	if f[bare(name)] {
		return true
	}
	for _, part := range strings.FieldsFunc(name, func(r rune) bool { return r == '[' || r == ']' || r == '.' }) {
		if f[bare(part)] {
			return true
		}
	}
	return false
}

// redact takes out the values of f.
func (f fields) redact(text string) string {
	return f.forms(f.parts(f.members(text)))
}

// member is a name of JSON, also of JSON that is a string of JSON.
var member = regexp.MustCompile(`(\\*)"((?:[^"\\]|\\u[0-9a-fA-F]{4})+)(\\*)"\s*:\s*`)

// members takes the values of members out of JSON, and of what is JSON in part.
func (f fields) members(text string) string {
	var out strings.Builder
	for {
		at := member.FindStringSubmatchIndex(text)
		if at == nil {
			out.WriteString(text)
			return out.String()
		}
		escape, name := text[at[2]:at[3]], text[at[4]:at[5]]
		var plain string
		switch {
		case escape != text[at[6]:at[7]]: // not of one string
			out.WriteString(text[:at[3]+1])
			text = text[at[3]+1:]
			continue
		case json.Unmarshal([]byte(`"`+name+`"`), &plain) != nil:
			plain = name
		}
		out.WriteString(text[:at[1]])
		text = text[at[1]:]
		if f.secret(plain) {
			out.WriteString(escape + `"` + Left + escape + `"`)
			text = text[valueEnd(text, len(escape)):]
		}
	}
}

// valueEnd returns where a value of JSON ends whose quotation marks have so many
// backslashes before them.
func valueEnd(s string, escapes int) int {
	depth := 0
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '{' || c == '[':
			depth++
			i++
		case depth > 0 && (c == '}' || c == ']'):
			depth--
			i++
		case c == '"' || c == '\\' && quotes(s[i:]):
			i = stringEnd(s, i, escapes)
		case c == '\\': // a line's end, as a string has it
			i += 2
			continue
		case depth > 0 || c == ' ':
			i++
			continue
		default:
			if n := strings.IndexAny(s[i:], " \t\r\n,\"\\{}[]"); n >= 0 {
				return i + n
			}
			return len(s)
		}
		if depth == 0 {
			return i
		}
	}
	return len(s)
}

// quotes reports whether a quotation mark follows some backslashes.
func quotes(s string) bool { return strings.HasPrefix(strings.TrimLeft(s, `\`), `"`) }

// stringEnd returns where a string ends that begins at i. One that is a string of JSON
// itself has its own quotation marks escaped once more.
func stringEnd(s string, i, escapes int) int {
	for i < len(s) && s[i] == '\\' {
		i++
	}
	backslashes := 0
	for i++; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			backslashes++
			continue
		case s[i] == '"' && backslashes >= escapes && (backslashes-escapes)%(2*(escapes+1)) == 0:
			return i + 1
		}
		backslashes = 0
	}
	return len(s)
}

// forms takes the values of fields out of forms and queries. One begins at the
// beginning, or after what stands between fields, before a query, or around a text.
func (f fields) forms(text string) string {
	const between = "&;?#\"' \t\r\n"
	var out strings.Builder
	last := 0
	for at := 0; at < len(text); at++ {
		quote := byte(0)
		if at > 0 {
			quote = text[at-1]
		}
		n := strings.IndexAny(text[at:], between+"=<>")
		if n < 0 {
			break
		}
		name := text[at : at+n]
		if at += n; text[at] == '=' && n > 0 {
			if plain, err := url.QueryUnescape(name); err == nil {
				name = plain
			}
			if f.secret(name) {
				out.WriteString(text[last:at+1] + Left)
				at += 1 + fieldEnd(text[at+1:], quote)
				last = at
			}
		}
		if n = strings.IndexAny(text[at:], between); n < 0 { // the next begins behind it
			break
		}
		at += n
	}
	return out.String() + text[last:]
}

// fieldEnd returns where a value ends. One in quotes is a text in another, as JSON.
func fieldEnd(s string, quote byte) int {
	n := strings.IndexAny(s, "&; \t\r\n")
	if n < 0 {
		n = len(s)
	}
	if q := strings.IndexByte(s[:n], quote); q >= 0 && (quote == '"' || quote == '\'') {
		n = len(strings.TrimRight(s[:q], `\`))
	}
	return n
}

// part is the head of a field of a form that is sent in parts (RFC 7578).
var part = regexp.MustCompile(`(?i)form-data;(?:[^\r\n]*;)?\s*name="?([^"\r\n;]+)"?[^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*\r?\n`)

// parts takes the values of fields out of forms that are sent in parts.
func (f fields) parts(text string) string {
	var out strings.Builder
	for {
		at := part.FindStringSubmatchIndex(text)
		if at == nil {
			out.WriteString(text)
			return out.String()
		}
		name, end := text[at[2]:at[3]], at[1]
		out.WriteString(text[:end])
		if f.secret(name) {
			out.WriteString(Left)
			end += partEnd(text[end:], delimiter(text[:at[0]]))
		}
		text = text[end:]
	}
}

// delimiter is the line between parts that stands before a head that has begun.
func delimiter(before string) string {
	for range 20 {
		n := strings.LastIndexByte(before, '\n')
		if line := strings.TrimRight(before[n+1:], "\r"); strings.HasPrefix(line, "--") {
			return line
		}
		if n < 0 {
			break
		}
		before = before[:n]
	}
	return "--"
}

func partEnd(s, delimiter string) int {
	switch n := strings.Index(s, "\n"+delimiter); {
	case strings.HasPrefix(s, delimiter):
		return 0
	case n < 0:
		return len(s)
	case n > 0 && s[n-1] == '\r':
		return n - 1
	default:
		return n
	}
}
