package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// A credential of type body goes into fields of a request's body that its document
// declares. The placeholder alone stands there as the field's value; what else it
// is found in is a leak, as everywhere. The body is rewritten while it streams.

const (
	// maxFilled is how often a placeholder is replaced in one body (CR-16).
	maxFilled = 16
	// maxMeasured is how much of a rewritten body is held to tell its length. A
	// longer one is sent in chunks, or without a length in HTTP/2.
	maxMeasured = 64 << 10
	// maxName bounds the name of a field, maxPart the header of a part.
	maxName, maxPart = 256, 8 << 10
	// maxNesting bounds what is remembered of where in a document we are.
	maxNesting = 64
)

// fieldScan follows a body, octet by octet, and knows when a declared field's value
// is about to begin.
type fieldScan interface {
	step(c byte)
	// skip returns how many octets at the beginning of p may stand there and change
	// nothing about what comes: they need not be stepped over.
	skip(p []byte) int
	// begins reports whether the next octet is the first of the value of a field
	// that is declared.
	begins() bool
	// ends reports whether what follows a value ends it; more says that the body
	// goes on after rest.
	ends(rest []byte, more bool) bool
	// empty reports whether the first octet of a value is already what follows it.
	empty(c byte) bool
	// text returns a value as it stands in such a field.
	text(value string) string
	// reads reports whether an octet may stand in such a body.
	reads(c byte) bool
}

// utf8Text is of bodies that are text. Servers guess another encoding, in which
// nothing declared would be found, by octets that UTF-8 never has (RFC 3629), and by
// zeros, which UTF-16 and UTF-32 have in all that is ASCII.
type utf8Text struct{}

func (utf8Text) reads(c byte) bool { return c != 0 && c != 0xc0 && c != 0xc1 && c < 0xf5 }

// keyJudge says why a body is not read on, or nil.
type keyJudge struct{ pass gate.Pass }

// own is for a body that holds a key of the caller's own.
func (j keyJudge) own() error { return j.refuse(rules.ForeignCredential, errOwnKey) }

// unread is for one of which nobody can tell whether it does.
func (j keyJudge) unread() error { return j.refuse(rules.BadRequest, errNotUTF8) }

func (j keyJudge) refuse(reason rules.Reason, why error) error {
	if j.pass.Decision().CallersKey {
		return nil
	}
	return denied(j.pass, reason, why)
}

// next judges the next octet of a body, which scan then steps over.
func (j keyJudge) next(scan fieldScan, c byte) error {
	switch {
	case !scan.reads(c):
		if err := j.unread(); err != nil {
			return err
		}
	case scan.begins() && !scan.empty(c):
		if err := j.own(); err != nil {
			return err
		}
	}
	scan.step(c)
	return nil
}

// over judges octets of a body, which scan steps over.
func (j keyJudge) over(scan fieldScan, p []byte) error {
	for len(p) > 0 {
		if n := scan.skip(p); n > 0 {
			p = p[n:]
			continue
		}
		if err := j.next(scan, p[0]); err != nil {
			return err
		}
		p = p[1:]
	}
	return nil
}

// octets is a set of octets.
type octets [256]bool

// dull returns the octets of text that are none of those.
func dull(but string) (set octets) {
	for c := range set {
		set[c] = utf8Text{}.reads(byte(c)) && strings.IndexByte(but, byte(c)) < 0
	}
	return set
}

// span returns how many octets at the beginning of p are in the set.
func (set *octets) span(p []byte) int {
	for i, c := range p {
		if !set[c] {
			return i
		}
	}
	return len(p)
}

// bodyError is a body that no credential can go into, or that cannot be looked into
// for keys: a fault of the request.
type bodyError struct{ error }

// Unwrap gives the fault.
func (e bodyError) Unwrap() error { return e.error }

func badBody(format string, args ...any) error { return bodyError{fmt.Errorf(format, args...)} }

var errNotUTF8 = errors.New("the body is not UTF-8, and cannot be looked into for keys: send it in UTF-8")

// errOwnKey is a key of the caller's own in a field of the body that takes keys.
var errOwnKey = errors.New("a field of the body holds a key of the caller's own")

// fill puts a secret into the body of r in place of a placeholder, in the fields
// that place declares. Anything else in them is a key of the caller's own. The error
// of a body that does not fit is a bodyError.
func fill(r *http.Request, place control.Place, placeholder, secret string, judge keyJudge) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	scan, err := scanOf(r.Header, policyfile.Fields(place.Name))
	if err != nil {
		return err
	}
	for key := range r.Header {
		if slices.ContainsFunc(vouchers, func(name string) bool { return sameField(key, name) }) {
			return badBody("the body is changed on its way, and %s vouches for what it was", key)
		}
	}
	f := &filler{src: r.Body, scan: scan, placeholder: []byte(placeholder), instead: []byte(scan.text(secret)), judge: judge}
	head := make([]byte, maxMeasured)
	n, err := io.ReadFull(f, head)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if len(r.Trailer) == 0 { // trailers need chunks
			r.ContentLength, r.TransferEncoding = int64(n), nil
		}
		r.Body = readCloser{bytes.NewReader(head[:n]), r.Body}
		if n == 0 {
			r.Body = http.NoBody
		}
	case err != nil && isDenied(err):
		return err
	case err != nil:
		return fmt.Errorf("reading the body that the credential goes into: %w", err)
	default:
		r.ContentLength = -1
		r.Body = readCloser{io.MultiReader(bytes.NewReader(head), f), r.Body}
	}
	r.Header.Del("Content-Length")
	return nil
}

// vouchers are fields that would not be true of a changed body (CR-27).
var vouchers = []string{
	"Content-MD5", "Content-Digest", "Digest", "Repr-Digest", "Signature", "Signature-Input", "X-Amz-Content-Sha256",
	"X-Hub-Signature", "X-Hub-Signature-256",
}

type readCloser struct {
	io.Reader
	io.Closer
}

// scanOf returns the scan for a body of the type that the header says.
func scanOf(h http.Header, fields []policyfile.Field) (fieldScan, error) {
	if len(h["Content-Encoding"]) > 0 {
		return nil, badBody("the body is compressed, and the credential goes into a field of it")
	}
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || len(h["Content-Type"]) != 1 {
		return nil, badBody("the body's type is not told, and the credential goes into a field of it")
	}
	if !readsAsUTF8(params["charset"]) {
		return nil, bodyError{errNotUTF8}
	}
	names := map[string]bool{}
	pick := func(want string) bool {
		for _, f := range fields {
			if f.Kind == want {
				names[f.Name] = true
			}
		}
		return len(names) > 0
	}
	switch {
	case kind == "application/json" || strings.HasSuffix(kind, "+json"):
		if pick("json") {
			return &jsonScan{names: names}, nil
		}
	case kind == "application/x-www-form-urlencoded":
		if pick("form") {
			return &formScan{names: names}, nil
		}
	case kind == "multipart/form-data" && params["boundary"] != "":
		if pick("multipart") {
			return newPartScan(params["boundary"], names), nil
		}
	}
	return nil, badBody("%w of type %.60q", errNoField, kind)
}

// readsAsUTF8 reports whether text in a charset is UTF-8 as well.
func readsAsUTF8(charset string) bool {
	return charset == "" || strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "us-ascii")
}

// errNoField is a body of a type of which no field is declared.
var errNoField = errors.New("the credential goes into no field of a body")

// filler reads a body with the secret in place of the placeholder.
type filler struct {
	src         io.Reader
	scan        fieldScan
	placeholder []byte
	instead     []byte
	judge       keyJudge

	in         []byte // read, and not looked at yet
	out        []byte // to be handed out
	err        error  // of src
	done       int    // how often it was replaced
	room       [16 << 10]byte
	kept, made []byte // what in and out are parts of
}

// lookahead is how much must follow a placeholder before it is judged: the
// delimiter of a multipart body is at most 70 characters and four more (RFC 2046
// section 5.1.1).
const lookahead = 80

// Read implements [io.Reader].
func (f *filler) Read(p []byte) (int, error) {
	for len(f.out) == 0 {
		if f.err != nil && len(f.in) == 0 {
			return 0, f.err
		}
		if f.err == nil {
			f.kept = append(f.kept[:0], f.in...) // little, and the beginning of kept is free
			n, err := f.src.Read(f.room[:])
			f.kept = append(f.kept, f.room[:n]...)
			f.in, f.err = f.kept, err
		}
		f.out = f.made[:0]
		err := f.work()
		f.made = f.out
		if err != nil {
			f.err, f.in, f.out = err, nil, nil
			return 0, err
		}
	}
	n := copy(p, f.out)
	f.out = f.out[n:]
	return n, nil
}

// work moves what is settled from in to out.
func (f *filler) work() error {
	more := f.err == nil
	for {
		at := bytes.Index(f.in, f.placeholder)
		if at < 0 {
			keep := 0
			if more { // it may begin at the end of what is here
				keep = min(len(f.in), len(f.placeholder)-1)
			}
			return f.pass(len(f.in) - keep)
		}
		if err := f.pass(at); err != nil {
			return err
		}
		end := len(f.placeholder)
		if more && len(f.in) < end+lookahead {
			return nil
		}
		if !f.scan.begins() || !f.scan.ends(f.in[end:], more) {
			if err := f.pass(1); err != nil { // else the guard finds it, and refuses
				return err
			}
			continue
		}
		if f.done++; f.done > maxFilled {
			return badBody("the placeholder stands in more than %d fields of the body", maxFilled)
		}
		for _, c := range f.in[:end] {
			f.scan.step(c)
		}
		f.out, f.in = append(f.out, f.instead...), f.in[end:]
	}
}

// pass hands n octets on as they are.
func (f *filler) pass(n int) error {
	if err := f.judge.over(f.scan, f.in[:n]); err != nil {
		return err
	}
	f.out = append(f.out, f.in[:n]...)
	f.in = f.in[n:]
	return nil
}

// ownKeys reads a body, and ends where a field of it that takes keys holds one of
// the caller's own.
type ownKeys struct {
	io.ReadCloser
	scan  fieldScan
	judge keyJudge
	err   error
}

// Read implements [io.Reader].
func (o *ownKeys) Read(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.ReadCloser.Read(p)
	if o.err = o.judge.over(o.scan, p[:n]); o.err != nil {
		return 0, o.err
	}
	return n, err
}

// watchKeys has the body of r end where it holds a key of the caller's own. A body
// that cannot be looked into is refused, as long as a document says that it may
// hold one.
func watchKeys(r *http.Request, fields []policyfile.Field, judge keyJudge) error {
	fields = slices.DeleteFunc(fields, func(f policyfile.Field) bool {
		return f.Kind != "json" && f.Kind != "form" && f.Kind != "multipart"
	})
	if len(fields) == 0 || r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	scan, err := scanOf(r.Header, fields)
	switch {
	case errors.Is(err, errNoField):
		return nil
	case err != nil:
		return err
	}
	r.Body = &ownKeys{ReadCloser: r.Body, scan: scan, judge: judge}
	return nil
}

func isDenied(err error) bool {
	_, ok := errors.AsType[*gate.DeniedError](err)
	return ok
}

// jsonScan follows a JSON document. A field is named by the keys that lead to it;
// lists on the way do not count.
type jsonScan struct {
	utf8Text
	names map[string]bool
	open  []jsonLevel
	lost  bool // nested too deep: nothing is declared any more

	key     []byte // of the key that is being read
	inText  bool
	escaped bool
	isKey   bool
	first   bool // the next octet is the first of a text value
}

type jsonLevel struct {
	object, wantKey bool
	key             string
}

func (s *jsonScan) step(c byte) {
	s.first = false
	if s.inText {
		s.inside(c)
		return
	}
	switch c {
	case '{', '[':
		if len(s.open) >= maxNesting {
			s.lost = true
			return
		}
		s.open = append(s.open, jsonLevel{object: c == '{', wantKey: c == '{'})
	case '}', ']':
		s.open = s.open[:max(0, len(s.open)-1)]
	case ',':
		if n := len(s.open); n > 0 && s.open[n-1].object {
			s.open[n-1].wantKey = true
		}
	case ':':
		if n := len(s.open); n > 0 {
			s.open[n-1].wantKey = false
		}
	case '"':
		n := len(s.open)
		s.inText, s.key = true, s.key[:0]
		s.isKey = n > 0 && s.open[n-1].object && s.open[n-1].wantKey
		s.first = !s.isKey
	}
}

// inside follows a text.
func (s *jsonScan) inside(c byte) {
	switch {
	case s.escaped:
		s.escaped = false
	case c == '\\':
		s.escaped = true
	case c == '"':
		s.inText = false
		if s.isKey {
			s.open[len(s.open)-1].key = s.unquoted()
		}
		return
	}
	if s.isKey && len(s.key) < maxName {
		s.key = append(s.key, c)
	}
}

// unquoted returns the key that was read, "" if it is no name that could be
// declared.
func (s *jsonScan) unquoted() string {
	if len(s.key) >= maxName {
		return ""
	}
	if bytes.IndexByte(s.key, '\\') < 0 {
		return string(s.key)
	}
	var key string
	if json.Unmarshal([]byte(`"`+string(s.key)+`"`), &key) != nil {
		return ""
	}
	return key
}

// What changes nothing inside of a text that is a value, and outside of texts.
var (
	inJSONText = dull("\"\\")
	inJSON     = dull("{}[],:\"")
)

func (s *jsonScan) skip(p []byte) int {
	switch {
	case s.first || s.isKey && s.inText || s.escaped:
		return 0
	case s.inText:
		return inJSONText.span(p)
	default:
		return inJSON.span(p)
	}
}

func (s *jsonScan) begins() bool {
	if !s.first || s.lost {
		return false
	}
	var path []string
	for _, l := range s.open {
		if l.object {
			path = append(path, l.key)
		}
	}
	return s.names[strings.Join(path, ".")]
}

func (*jsonScan) ends(rest []byte, _ bool) bool { return len(rest) > 0 && rest[0] == '"' }

func (*jsonScan) empty(c byte) bool { return c == '"' }

func (*jsonScan) text(v string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil { // a text always can be
		return ""
	}
	return b.String()[1 : b.Len()-2] // without the quotes and the line end
}

// formScan follows a form (application/x-www-form-urlencoded).
type formScan struct {
	utf8Text
	names   map[string]bool
	name    []byte
	inValue bool
	first   bool
}

func (s *formScan) step(c byte) {
	s.first = false
	switch {
	case c == '&':
		s.inValue, s.name = false, s.name[:0]
	case !s.inValue && c == '=':
		s.inValue, s.first = true, true
	case !s.inValue && len(s.name) <= maxName:
		s.name = append(s.name, c)
	}
}

var inForm = dull("&")

func (s *formScan) skip(p []byte) int {
	if s.first || !s.inValue {
		return 0
	}
	return inForm.span(p)
}

func (s *formScan) begins() bool {
	name, err := url.QueryUnescape(string(s.name))
	return s.first && err == nil && len(s.name) <= maxName && s.names[name]
}

func (*formScan) ends(rest []byte, more bool) bool {
	return len(rest) == 0 && !more || len(rest) > 0 && rest[0] == '&'
}

func (*formScan) empty(c byte) bool { return c == '&' }

func (*formScan) text(v string) string { return url.QueryEscape(v) }

// partScan follows a multipart form (RFC 7578).
type partScan struct {
	names     map[string]bool
	delimiter []byte // CR LF, two hyphens, the boundary
	tail      []byte // the end of what was read, at most as long as delimiter
	header    []byte // of the part whose header is being read
	inHeader  bool
	declared  bool
	first     bool
}

func newPartScan(boundary string, names map[string]bool) *partScan {
	// The first delimiter may do without the line end before it.
	return &partScan{names: names, delimiter: []byte("\r\n--" + boundary), tail: []byte("\r\n")}
}

func (s *partScan) step(c byte) {
	s.first = false
	if s.inHeader {
		if len(s.header) < maxPart {
			s.header = append(s.header, c)
		}
		if c == '\n' && bytes.HasSuffix(s.header, []byte("\r\n\r\n")) {
			s.inHeader, s.first, s.tail = false, true, s.tail[:0]
			s.declared = s.names[partName(s.header)]
		}
		return
	}
	if s.tail = append(s.tail, c); len(s.tail) > len(s.delimiter) {
		s.tail = append(s.tail[:0], s.tail[1:]...)
	}
	if c == s.delimiter[len(s.delimiter)-1] && bytes.Equal(s.tail, s.delimiter) {
		s.inHeader, s.declared, s.header = true, false, s.header[:0]
	}
}

// partName returns the name of a part that is a plain field, "" for any other: a
// file's content and a file's name are no place for a credential.
func partName(header []byte) string {
	name := ""
	_, fields, _ := strings.Cut(string(header), "\r\n") // what is left of the delimiter's line
	for line := range strings.SplitSeq(fields, "\r\n") {
		key, value, _ := strings.Cut(line, ":")
		switch {
		case strings.EqualFold(key, "Content-Transfer-Encoding"):
			return ""
		case !strings.EqualFold(key, "Content-Disposition"):
			continue
		}
		kind, params, err := mime.ParseMediaType(value)
		if _, file := params["filename"]; err != nil || kind != "form-data" || file || name != "" {
			return ""
		}
		name = params["name"]
	}
	return name
}

func (s *partScan) skip(p []byte) int {
	// A delimiter may be under way as long as its first octet is in tail.
	if s.first || s.inHeader || bytes.IndexByte(s.tail, '\r') >= 0 {
		return 0
	}
	s.tail = s.tail[:0]
	if n := bytes.IndexByte(p, '\r'); n >= 0 {
		return n
	}
	return len(p)
}

func (s *partScan) begins() bool { return s.first && s.declared }

func (s *partScan) ends(rest []byte, _ bool) bool { return bytes.HasPrefix(rest, s.delimiter) }

func (*partScan) empty(c byte) bool { return c == '\r' }

// reads is true of all octets: files have any.
func (*partScan) reads(byte) bool { return true }

func (*partScan) text(v string) string { return v }
