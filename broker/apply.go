package broker

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"sallyport/broker/scrub"
	"sallyport/control"
	"sallyport/rules/target"
)

// apply changes a request as the broker said. Everything that a sandbox put
// under the names concerned is taken away first, however it is spelled, also in
// trailers, and so is a Connection field that would have the next hop drop what
// is put there (HT-09).
func apply(r *http.Request, place control.Place, ans injectAnswer) error {
	var room [8]string
	names := append(room[:0], ans.Remove...)
	if !inQuery(&place) && place.Header != "" {
		names = append(names, place.Header)
	}
	for name, value := range ans.fields() {
		if !httpguts.ValidHeaderFieldValue(value) {
			return errors.New("the broker's answer cannot stand in a header")
		}
		names = append(names, name)
	}
	if r.Header == nil {
		r.Header = http.Header{}
	}
	scrub.Ask(r.Header)
	removeFields(r.Header, names)
	removeFields(r.Trailer, names)
	unlistFields(r.Header, names)
	for name, value := range ans.fields() {
		r.Header.Add(name, value)
	}
	params := ans.Query
	if inQuery(&place) {
		if _, ok := params[place.Header]; !ok {
			return errors.New("the broker's answer leaves the credential's parameter out")
		}
	}
	if len(params) > 0 {
		r.URL.RawQuery = setParams(r.URL.RawQuery, params)
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &trailerGuard{r.Body, r, slices.Clone(names)}
	}
	return nil
}

// trailerGuard takes the names out of trailers that were not announced: they
// appear when the body ends (RFC 9110 section 6.5).
type trailerGuard struct {
	io.ReadCloser
	r     *http.Request
	names []string
}

// Read implements [io.Reader].
func (t *trailerGuard) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err != nil {
		removeFields(t.r.Trailer, t.names)
	}
	return n, err
}

// removeFields deletes fields that a server may take for one of the names: in
// any case, and with underscores for hyphens, which CGI cannot tell apart
// (RFC 3875 section 4.1.18).
func removeFields(h http.Header, names []string) {
	for key := range h {
		if slices.ContainsFunc(names, func(n string) bool { return sameField(key, n) }) {
			delete(h, key)
		}
	}
}

// sameField reports whether two field names may be read as one.
func sameField(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if foldField(a[i]) != foldField(b[i]) {
			return false
		}
	}
	return true
}

func foldField(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c - 'A' + 'a'
	case c == '_':
		return '-'
	default:
		return c
	}
}

// unlistFields takes the names out of Connection fields.
func unlistFields(h http.Header, names []string) {
	listed := h["Connection"]
	if len(listed) == 0 {
		return
	}
	var keep []string
	for _, line := range listed {
		for option := range strings.SplitSeq(line, ",") {
			option = strings.TrimSpace(option)
			if option != "" && !slices.ContainsFunc(names, func(n string) bool { return sameField(option, n) }) {
				keep = append(keep, option)
			}
		}
	}
	delete(h, "Connection")
	if len(keep) > 0 {
		h["Connection"] = []string{strings.Join(keep, ", ")}
	}
}

// setParams returns a query in which each parameter stands once, with its value,
// at the end. The others stay as they are, octet for octet.
func setParams(raw string, params map[string]string) string {
	names := slices.Sorted(maps.Keys(params))
	parts := make([]string, 0, len(names)+1)
	if rest := target.WithoutParams(raw, names); rest != "" {
		parts = append(parts, rest)
	}
	for _, name := range names {
		parts = append(parts, url.QueryEscape(name)+"="+url.QueryEscape(params[name]))
	}
	return strings.Join(parts, "&")
}
