package proxy

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/rules/visible"
)

const (
	maxAsk = 4 << 10 // octets of a request for access
	maxWhy = 500     // octets of its reason
)

// Asked is a request for access as the sandbox that made it may see it.
type Asked struct {
	ID      string    `json:"id"`
	Request string    `json:"request"` // the refusal that it is about
	State   string    `json:"state"`   // asked, approved, denied
	Note    string    `json:"note,omitempty"`
	Until   time.Time `json:"until,omitzero"`
}

// AskError is why a request for access was not taken.
type AskError struct {
	Status int
	Text   string
}

// Error implements error.
func (e *AskError) Error() string { return e.Text }

// ask takes a request for access.
func (h *Help) ask(w http.ResponseWriter, r *http.Request) {
	if h.Ask == nil {
		problem(w, http.StatusNotImplemented, "No approver is configured: nobody can answer a request for access here. "+
			"Go on with what the policy allows, and tell the person who started this run what you needed and why.")
		return
	}
	var in struct {
		Request string `json:"request"`
		Reason  string `json:"reason"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAsk))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil || in.Request == "" || strings.TrimSpace(in.Reason) == "" || len(in.Reason) > maxWhy || !utf8.ValidString(in.Reason) {
		problem(w, http.StatusBadRequest, `Say {"request":"<the id in the refusal>","reason":"<why you need it, at most 500 characters>"}.`)
		return
	}
	out, err := h.Ask(r.Context(), CellOf(r.Context()), in.Request, plain(in.Reason))
	if refusal, ok := errors.AsType[*AskError](err); ok {
		problem(w, refusal.Status, refusal.Text)
		return
	}
	if err != nil {
		problem(w, http.StatusServiceUnavailable, "The request for access cannot be taken just now.")
		return
	}
	w.Header().Set("Content-Type", jsonPlain)
	w.WriteHeader(http.StatusAccepted)
	_ = json.NewEncoder(w).Encode(out) // a client that is gone learns nothing
}

// asked lists what the sandbox asked for.
func (h *Help) asked(w http.ResponseWriter, r *http.Request) {
	list := []Asked{}
	if h.Asked != nil {
		list = append(list, h.Asked(CellOf(r.Context()))...)
	}
	w.Header().Set("Content-Type", jsonPlain)
	_ = json.NewEncoder(w).Encode(list) // a client that is gone learns nothing
}

// plain keeps what a terminal might act on, or hide, away from who reads it.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !visible.Rune(r) {
			return ' '
		}
		return r
	}, s)
}
