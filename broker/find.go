package broker

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"sallyport/broker/needle"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/target"
)

// finder tells what a request carries of one cell's credentials. It is
// immutable.
type finder struct {
	grants []control.Grant
	set    *needle.Set // spellings of the placeholders; Value is a place in owner
	folded *needle.Set // the placeholders in lower case, as names of fields are sent
	hosts  *needle.Set // the spellings that names of hosts can hold
	// owner holds the grant of each placeholder: first those that identify their
	// grants, in order, then the others, which may stand nowhere.
	owner []int
	own   []ownPlaces // of each grant
	// document says of each placeholder whether it is the id of a document.
	document []bool
}

// newFinder returns nil if there is nothing to find.
func newFinder(grants []control.Grant) *finder {
	if len(grants) == 0 {
		return nil
	}
	f := &finder{grants: grants}
	var all, folded, hosts []needle.Needle
	add := func(placeholder string, grant int, document bool) {
		low := foldedName(nil, placeholder)
		folded = append(folded, needle.Needle{Text: low, Instead: low, Value: len(f.owner)})
		all = append(all, needle.Spellings([]byte(placeholder), nil, len(f.owner))...)
		hosts = append(hosts, needle.Names([]byte(placeholder), len(f.owner))...)
		f.owner, f.document = append(f.owner, grant), append(f.document, document)
	}
	for i, g := range grants {
		add(g.Placeholder, i, false)
		f.own = append(f.own, ownPlacesOf(g.Place.Own))
	}
	for i, g := range grants {
		for _, v := range g.More {
			// A document is looked for by its id.
			if id := cmp.Or(v.ID, v.Placeholder); id != g.Placeholder {
				add(id, i, v.ID != "")
			}
		}
	}
	f.set, f.folded, f.hosts = needle.NewSet(all), needle.NewSet(folded), needle.NewSet(hosts)
	return f
}

// has reports whether f is of these grants.
func (f *finder) has(grants []control.Grant) bool {
	if f == nil {
		return len(grants) == 0
	}
	return slices.EqualFunc(f.grants, grants, func(a, b control.Grant) bool {
		return a.Credential == b.Credential && a.Env == b.Env && a.Placeholder == b.Placeholder && a.Place == b.Place && slices.Equal(a.More, b.More)
	})
}

func (f *finder) place(credential string) (control.Place, bool) {
	if g := f.grant(credential); g != nil {
		return g.Place, true
	}
	return control.Place{}, false
}

func (f *finder) placeholder(credential string) string {
	if g := f.grant(credential); g != nil {
		return g.Placeholder
	}
	return ""
}

// grant returns the grant of a credential, or nil.
func (f *finder) grant(credential string) *control.Grant {
	for i := range f.grants {
		if f.grants[i].Credential == credential {
			return &f.grants[i]
		}
	}
	return nil
}

// seen is what was found of one grant.
type seen uint8

const (
	seenBound seen = 1 << iota
	seenForeign
	seenLeaked
	seenPlace  // something stands in the place already: a second thing is foreign
	seenInHost // leaked there
)

// usual is how many grants a run has at most, as a rule.
const usual = 8

// look is one look at one request.
type look struct {
	f    *finder
	seen []seen
}

// look begins a look at a request.
func (f *finder) look(room *[usual]seen) look {
	if n := len(f.grants); n > usual {
		return look{f, make([]seen, n)}
	}
	return look{f, room[:len(f.grants)]}
}

// find judges a request's head.
func (f *finder) find(r *http.Request) []rules.Carry {
	var room [usual]seen
	l := f.look(&room)
	for key, values := range r.Header {
		l.field(key, values)
	}
	for key, values := range r.Trailer {
		l.field(key, values)
	}
	l.text(r.Host, -1)
	l.host(r.Host)
	l.text(r.Method, -1)
	l.target(r)
	return l.carries()
}

// target looks at the request line.
func (l *look) target(r *http.Request) {
	path, query, _ := strings.Cut(r.RequestURI, "?")
	l.text(path, -1)
	if r.URL == nil {
		l.query(query)
		return
	}
	if query != r.URL.RawQuery {
		l.query(query)
	}
	// The parts of a URL that was changed after it was parsed, or that were
	// never in a request line (HTTP/2).
	l.text(r.URL.Host, -1)
	l.text(r.URL.Path, -1)
	l.text(r.URL.RawPath, -1)
	l.text(r.URL.Opaque, -1)
	l.text(r.URL.Fragment, -1)
	if u := r.URL.User; u != nil {
		l.text(u.Username(), -1)
		pass, _ := u.Password()
		l.text(pass, -1)
		for i := range l.seen { // it would be sent as Authorization, if at all
			l.seen[i] |= seenForeign
		}
	}
	l.query(r.URL.RawQuery)
}

// field looks at one header field or trailer. What stands in the place of a grant
// as a client writes it is that grant's, and nobody's own key: an API may take the
// keys of two grants, in one field or in two.
func (l *look) field(key string, values []string) {
	l.text(key, -1)
	l.name(key)
	ownKey := isKeyField(key)
	if len(values) > 1 {
		l.over(values)
	}
	for n, v := range values {
		bound := l.boundIn(key, v)
		l.text(v, bound)
		if strings.Trim(v, " \t") == "" {
			continue
		}
		for i := range l.f.grants {
			switch p := &l.f.grants[i].Place; {
			case !inQuery(p) && p.Header != "" && sameField(key, p.Header):
				l.inPlace(i, bound)
			case bound < 0 && (ownKey || l.f.own[i].inField(key, values[n:n+1])):
				l.seen[i] |= seenForeign // whether that matters the policy knows
			}
		}
	}
}

// over notes a placeholder that is in several lines of a field, one part behind another.
func (l *look) over(lines []string) {
	if i, ok := l.f.across(lines); ok {
		l.seen[l.f.owner[i]] |= seenLeaked
	}
}

// across returns the placeholder that is cut by the ends of lines.
func (f *finder) across(lines []string) (value int, ok bool) {
	all := strings.Join(lines, "")
	for from := 0; ; {
		h, ok := needle.Next(f.set, all, from)
		if !ok {
			return 0, false
		}
		end := 0
		for _, line := range lines {
			if end += len(line); h.At < end && end < h.At+h.Len {
				return h.Needle.Value, true
			}
		}
		from = h.At + 1
	}
}

// inPlace notes what stands in the place of grant i: what is bound to a grant, or
// to none (-1).
func (l *look) inPlace(i, bound int) {
	switch {
	case bound == i && l.seen[i]&seenPlace == 0:
		l.seen[i] |= seenBound | seenPlace
	case bound < 0 && l.f.grants[i].Place.Type == "hmac":
		// A signature, whoever's: it is no key, says of no grant that it is its own, and
		// another takes its place.
	case bound < 0, bound == i:
		l.seen[i] |= seenForeign | seenPlace
	}
}

// boundIn returns the grant whose placeholder may stand in a field's value, or -1.
func (l *look) boundIn(key, v string) int {
	for i := range l.f.grants {
		g := &l.f.grants[i]
		if !inQuery(&g.Place) && key == g.Place.Header && standsAlone(g, v) {
			return i
		}
	}
	return -1
}

// query looks at a raw query.
func (l *look) query(raw string) {
	if raw == "" {
		return
	}
	var q inQueryOnly
	for rest, more := raw, true; more; {
		var part string
		part, rest, more = strings.Cut(rest, "&")
		l.param(part, &q)
	}
	// A signature is somebody's own unless a placeholder of the run signed; a version
	// and a signature are a shared access signature of Azure.
	if q.signature && !q.presigned || q.sasVersion && q.sas {
		for i := range l.seen {
			if q.sasVersion && q.sas || l.f.grants[i].Place.Type != "aws-sigv4" {
				l.seen[i] |= seenForeign
			}
		}
	}
}

// inQueryOnly is what counts only beside another part of a query.
type inQueryOnly struct{ presigned, signature, sasVersion, sas bool }

func (l *look) param(part string, q *inQueryOnly) {
	bound := l.boundParam(part)
	signature := target.ParamLike(part, "X-Amz-Signature")
	q.signature = q.signature || signature
	q.presigned = q.presigned || bound >= 0 && l.f.grants[bound].Place.Type == "aws-sigv4"
	q.sasVersion = q.sasVersion || target.ParamNamed(part, "sv")
	q.sas = q.sas || bound < 0 && target.ParamNamed(part, "sig")
	ownKey := !signature && isKeyParam(part)
	text := bound
	if bound >= 0 && l.seen[bound]&seenPlace != 0 {
		text = -1 // once is enough
	}
	for i := range l.f.grants {
		switch g := &l.f.grants[i]; {
		case isPlaceParam(g, part):
			l.inPlace(i, bound)
		case bound < 0 && (ownKey || l.f.own[i].inParam(part)):
			l.seen[i] |= seenForeign
		}
	}
	l.text(part, text)
}

// isPlaceParam reports whether a server may take a part of a query for the place of a
// grant.
func isPlaceParam(g *control.Grant, part string) bool {
	if g.Place.Type == "aws-sigv4" {
		return target.ParamLike(part, credentialParam)
	}
	return inQuery(&g.Place) && target.ParamLike(part, g.Place.Header)
}

// boundParam returns the grant whose placeholder may stand in a part of a query, or
// -1.
func (l *look) boundParam(part string) int {
	key, v, _ := strings.Cut(part, "=")
	for i := range l.f.grants {
		g := &l.f.grants[i]
		if g.Place.Type == "aws-sigv4" && isPresigned(g, key, v) || inQuery(&g.Place) && key == g.Place.Header && isParam(g, v) {
			return i
		}
	}
	return -1
}

// inQuery reports whether a credential goes into the query.
func inQuery(p *control.Place) bool { return p.Type == "query" || p.Type == "azure-sas" }

// isParam reports whether a parameter's value is the placeholder of a grant.
func isParam(g *control.Grant, v string) bool {
	if v == g.Placeholder {
		return true
	}
	plain, err := url.QueryUnescape(v) // a signature in base64 has characters that are escaped
	return err == nil && g.Place.Type == "azure-sas" && plain == g.Placeholder
}

// text notes every placeholder in s as leaked, except that of one grant, which
// may stand there.
func (l *look) text(s string, except int) {
	if len(s) < needle.MinLen {
		return
	}
	search(l, s, except)
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '\\') < 0 {
		return
	}
	buf := getScratch()
	defer scratch.Put(buf)
	*buf = append((*buf)[:0], s...)
	for range maxDecodings {
		n := unescape(*buf)
		if n == len(*buf) {
			return
		}
		*buf = (*buf)[:n]
		search(l, *buf, except)
	}
}

// name notes every placeholder in the name of a field as leaked. Their case is folded
// on the way: net/http writes them as Like-This, HTTP/2 in lower case (RFC 9113
// section 8.2).
func (l *look) name(s string) {
	if len(s) < minRandom {
		return
	}
	buf := getScratch()
	defer scratch.Put(buf)
	*buf = foldedName((*buf)[:0], s)
	for from := 0; ; {
		h, ok := needle.Next(l.f.folded, *buf, from)
		if !ok {
			return
		}
		l.seen[l.f.owner[h.Needle.Value]] |= seenLeaked
		from = h.At + 1
	}
}

// foldedName appends s to dst in lower case.
func foldedName(dst []byte, s string) []byte {
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		dst = append(dst, c)
	}
	return dst
}

// maxDecodings is how often an escaped text is unescaped: proxies on the way are
// known to do it twice.
const maxDecodings = 3

// scratch holds buffers in which text is unescaped, so that a request that
// carries nothing allocates nothing.
var scratch sync.Pool

func getScratch() *[]byte {
	if b, ok := scratch.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, 4<<10)
	return &b
}

func search[T needle.Text](l *look, s T, except int) {
	for from := 0; ; {
		h, ok := needle.Next(l.f.set, s, from)
		if !ok {
			return
		}
		if !l.f.mayStand(h.Needle, except) {
			l.seen[l.f.owner[h.Needle.Value]] |= seenLeaked
		}
		from = h.At + 1
	}
}

// mayStand reports whether a needle belongs into the place of grant except: its
// placeholder, or the id of its document, and never the other half of a pair.
func (f *finder) mayStand(n *needle.Needle, except int) bool {
	if n.Value == except {
		return true
	}
	return except >= 0 && f.owner[n.Value] == except && f.document[n.Value]
}

// unescape undoes percent escapes and the \u00XX, \xXX and one-character escapes
// of JSON and its relatives, in place, and returns the new length. What is
// broken stays as it is.
func unescape(b []byte) int {
	n := 0
	for i := 0; i < len(b); i++ {
		c, used := b[i], 0
		switch {
		case c == '%':
			c, used = hexAt(b, i+1, c)
		case c == '\\' && i+1 < len(b):
			c, used = backslash(b, i)
		}
		i += used
		b[n] = c
		n++
	}
	return n
}

func backslash(b []byte, i int) (byte, int) {
	switch b[i+1] {
	case 'u':
		if i+3 < len(b) && b[i+2] == '0' && b[i+3] == '0' {
			if c, used := hexAt(b, i+4, 0); used > 0 {
				return c, used + 3
			}
		}
		return '\\', 0
	case 'x':
		if c, used := hexAt(b, i+2, 0); used > 0 {
			return c, used + 1
		}
		return '\\', 0
	default:
		return b[i+1], 1
	}
}

// hexAt reads two hexadecimal digits; used is 0 and c is otherwise if there are none.
func hexAt(b []byte, i int, otherwise byte) (c byte, used int) {
	if i+1 >= len(b) {
		return otherwise, 0
	}
	hi, ok1 := hexDigit(b[i])
	lo, ok2 := hexDigit(b[i+1])
	if !ok1 || !ok2 {
		return otherwise, 0
	}
	return hi<<4 | lo, 2
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// isAlone reports whether a field's value is the placeholder and nothing else
// that counts: bare, behind a scheme's name, or as user or password of HTTP
// basic authentication. Clients differ there, and all of it is replaced.
func isAlone(v, placeholder string) bool {
	v = strings.Trim(v, " \t")
	if v == placeholder {
		return true
	}
	scheme, rest, ok := strings.Cut(v, " ")
	if !ok || !isToken(scheme) {
		return false
	}
	rest = strings.TrimLeft(rest, " ")
	if rest == placeholder {
		return true
	}
	return strings.EqualFold(scheme, "basic") && isBasic(rest, placeholder)
}

func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !isAlnum(c) && c != '-' && c != '_' {
			return false
		}
	}
	return s != ""
}

// isBasic reports whether encoded is base64 of user:placeholder or
// placeholder:anything.
func isBasic(encoded, placeholder string) bool {
	buf := getScratch()
	defer scratch.Put(buf)
	*buf = append((*buf)[:0], encoded...)
	both, err := base64.StdEncoding.AppendDecode(*buf, *buf)
	if err != nil {
		return false
	}
	*buf = both
	pair := both[len(encoded):]
	at := bytes.IndexByte(pair, ':')
	return at >= 0 && (string(pair[at+1:]) == placeholder || string(pair[:at]) == placeholder)
}

func (l *look) carries() []rules.Carry {
	var out []rules.Carry
	for i, s := range l.seen {
		name := l.f.grants[i].Credential
		switch {
		case s&seenInHost != 0:
			out = append(out, rules.Carry{Credential: name, State: rules.LeakedInHost})
		case s&seenLeaked != 0:
			out = append(out, rules.Carry{Credential: name, State: rules.Leaked})
		}
		if s&seenForeign != 0 {
			out = append(out, rules.Carry{Credential: name, State: rules.Foreign})
		}
		if s&seenBound != 0 {
			out = append(out, rules.Carry{Credential: name, State: rules.Bound})
		}
	}
	return out
}
