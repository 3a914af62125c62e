// Package secret holds a secret value so that it does not get printed.
//
// Whatever formats, logs or marshals a [Value] gets a fixed word. Only
// [Value.Reveal] gives the octets, so that a search for it finds every place
// where a secret is used. The package trusts its callers not to keep what
// Reveal returns; it never writes a secret anywhere.
package secret

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// Redacted stands for a secret wherever it is printed.
const Redacted = "[redacted]"

// Value is a secret. Copies share the octets, so that [Value.Wipe] of one wipes
// all. The zero Value is empty.
//
// The octets sit behind a function: fmt follows pointers even in unexported
// fields, where it calls no method, if a verb does not fit.
type Value struct{ p func() *[]byte }

// New makes a Value of b and takes it over: the caller does not use b again.
func New(b []byte) Value { return Value{func() *[]byte { return &b }} }

// Reveal returns the octets themselves. The caller neither keeps nor changes them.
func (v Value) Reveal() []byte {
	if v.p == nil {
		return nil
	}
	return *v.p()
}

// Len returns the number of octets.
func (v Value) Len() int { return len(v.Reveal()) }

// Equal reports whether two secrets are the same, in time that depends on
// their lengths alone.
func (v Value) Equal(w Value) bool { return subtle.ConstantTimeCompare(v.Reveal(), w.Reveal()) == 1 }

// Wipe overwrites the octets and leaves v, and every copy of it, empty. It is
// best effort: what was revealed into a string is not reached.
func (v Value) Wipe() {
	if v.p == nil {
		return
	}
	clear(*v.p())
	*v.p() = nil
}

// String returns [Redacted].
func (v Value) String() string { return Redacted }

// GoString returns [Redacted].
func (v Value) GoString() string { return Redacted }

// Format writes [Redacted] for every verb.
func (v Value) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, Redacted) }

// LogValue returns [Redacted].
func (v Value) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalText returns [Redacted]. JSON, YAML and XML encoders use it.
func (v Value) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON returns [Redacted] as a JSON string.
func (v Value) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// GobEncode returns [Redacted]: gob writes what a type hides otherwise.
func (v Value) GobEncode() ([]byte, error) { return []byte(Redacted), nil }
