package proxy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"sallyport/rules"
)

const (
	policyPath   = "/v1/policy"
	denialsPath  = "/v1/denials"
	requestsPath = "/v1/requests"

	maxDenials = 100
)

// Denied is a refusal as a sandbox may see it: what it asked for itself, and
// why it did not get it. There is no query in it.
type Denied struct {
	Time   time.Time `json:"time"`
	ID     string    `json:"request"`
	Reason string    `json:"reason"`
	Method string    `json:"method,omitempty"`
	Host   string    `json:"host"`
	Port   uint16    `json:"port,omitempty"`
	Path   string    `json:"path,omitempty"`
	Rule   string    `json:"rule,omitempty"`
}

// Help answers for sallyport.internal: what a sandbox can know about its own
// limits. The zero Help gives the help text alone.
type Help struct {
	// Policy returns the text of a cell's effective policy.
	Policy func(cell string) (text string, ok bool)
	// Denials returns a cell's last refusals, the newest first.
	Denials func(ctx context.Context, cell string, last int) ([]Denied, error)
	// Ask takes a cell's request for what it was refused, with the reason that it
	// gives. An [*AskError] is for the sandbox. Nil: nobody can answer.
	Ask func(ctx context.Context, cell, request, reason string) (Asked, error)
	// Asked lists a cell's requests for access.
	Asked func(cell string) []Asked
}

type cellKey struct{}

func withCell(ctx context.Context, cell string) context.Context {
	return context.WithValue(ctx, cellKey{}, cell)
}

// CellOf returns the cell whose request for sallyport.internal is answered:
// for handlers that stand in for [Help].
func CellOf(ctx context.Context) string {
	cell, _ := ctx.Value(cellKey{}).(string)
	return cell
}

const helpText = `You are in a sandbox. All of its traffic goes through a gateway that lets
through what a policy allows, and says so when it does not.

A refusal is an answer with the header Sallyport-Reason and one sentence that
says what was refused and why. It is not a network fault: another DNS server,
address, port, VPN or proxy setting does not help. Use what is allowed, or ask.

Credentials: the keys that you see are placeholders. Use them as if they were
real; the gateway puts the real ones in, where the policy says so.

  GET  http://sallyport.internal/v1/policy            what is allowed here
  GET  http://sallyport.internal/v1/denials?last=10   what was refused lately, and why
  POST http://sallyport.internal/v1/requests          ask a human for more:
       {"request":"<the id in the refusal>","reason":"<why you need it>"}
  GET  http://sallyport.internal/v1/requests          what became of it
`

// ServeHTTP implements http.Handler.
func (h *Help) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case r.URL.Path == requestsPath && r.Method == http.MethodPost:
		h.ask(w, r)
	case !read:
		w.Header().Set("Allow", "GET, HEAD")
		problem(w, http.StatusMethodNotAllowed, "This address is read with GET.")
	case r.URL.Path == "/":
		text(w, helpText)
	case r.URL.Path == requestsPath:
		h.asked(w, r)
	case r.URL.Path == policyPath:
		h.policy(w, r)
	case r.URL.Path == denialsPath:
		h.denials(w, r)
	default:
		problem(w, http.StatusNotFound, "There is nothing here. GET http://"+rules.Reserved+"/ says what there is.")
	}
}

func (h *Help) policy(w http.ResponseWriter, r *http.Request) {
	if h.Policy != nil {
		if t, ok := h.Policy(CellOf(r.Context())); ok {
			text(w, t)
			return
		}
	}
	problem(w, http.StatusNotFound, "The text of the policy is not available.")
}

func (h *Help) denials(w http.ResponseWriter, r *http.Request) {
	last := 10
	if s := r.URL.Query().Get("last"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxDenials {
			problem(w, http.StatusBadRequest, "last is a number from 1 to "+strconv.Itoa(maxDenials)+".")
			return
		}
		last = n
	}
	if h.Denials == nil {
		problem(w, http.StatusNotFound, "The list of refusals is not available.")
		return
	}
	list, err := h.Denials(r.Context(), CellOf(r.Context()), last)
	if err != nil {
		problem(w, http.StatusServiceUnavailable, "The list of refusals cannot be read just now.")
		return
	}
	if list == nil {
		list = []Denied{}
	}
	w.Header().Set("Content-Type", jsonPlain)
	_ = json.NewEncoder(w).Encode(list) // a client that is gone learns nothing
}

func text(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", textPlain)
	w.Header().Set("Content-Length", strconv.Itoa(len(s)))
	_, _ = io.WriteString(w, s)
}

func problem(w http.ResponseWriter, status int, s string) {
	w.Header().Set("Content-Type", textPlain)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, s+"\n")
}
