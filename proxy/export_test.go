package proxy

import (
	"net/http"
	"net/url"

	"sallyport/rules/target"
)

// ReadForm reads what a request asks for, and returns the URL and the host
// that would be sent for it.
func ReadForm(r *http.Request, secure bool) (to target.Endpoint, path target.Path, query string, sent *url.URL, err error) {
	f, err := readForm(r, secure)
	if err != nil {
		return to, path, "", nil, err
	}
	x := &exchange{in: r, form: f, secure: secure}
	return f.endpoint, f.path, f.query, x.url(), nil
}

// RejectsCA reports whether an error of a handshake means that the client does
// not trust the CA.
func RejectsCA(err error) bool { return rejectsCA(err) }
