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
	x.url()
	return f.endpoint, f.path, f.query, &x.to, nil
}

// RejectsCA reports whether an error of a handshake means that the client does
// not trust the CA.
func RejectsCA(err error) bool { return rejectsCA(err) }

// Defaults returns what a configuration without bounds is given.
func Defaults() (l Limits, t Timeouts, err error) {
	if l, err = l.withDefaults(); err != nil {
		return l, t, err
	}
	t, err = t.withDefaults()
	return l, t, err
}

// Bounds of HTTP/2 that cannot be set.
const (
	H2ConnBuffer   = h2ConnBuffer
	H2StreamBuffer = h2StreamBuffer
	H2FrameBytes   = h2FrameBytes
	H2Excess       = h2Excess
)

// MaxIdleCrew is how many goroutines of a crew wait for another job.
const MaxIdleCrew = maxIdleCrew

// Crew is a crew, for tests.
type Crew struct{ *crew }

// NewCrew returns a crew.
func NewCrew() Crew { return Crew{newCrew()} }

// Run has a job done.
func (c Crew) Run(job func()) { c.run(job) }

// Dismiss ends the crew.
func (c Crew) Dismiss() { c.dismiss() }

// Idle is how many wait for a job.
func (c Crew) Idle() int { return int(c.idle.Load()) }
