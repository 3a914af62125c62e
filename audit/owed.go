package audit

import "bytes"

// A record of kind done tells of what is over: to refuse it prevents nothing,
// and leaves an admit without an end. One that cannot be written is kept, as
// long as there is room, and written when the log goes on.

const (
	maxOwed      = 20_000
	maxOwedBytes = 16 << 20
)

// owed is a line that could not be written, from the kind on.
type owed struct {
	rest []byte
	id   string
}

// owe keeps e if it tells of what is over. It reports whether it did.
func (l *Log) owe(e *entry) bool {
	if !e.owed {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owed) >= maxOwed || l.owedBytes+len(e.rest) > maxOwedBytes {
		return false
	}
	l.owed = append(l.owed, owed{bytes.Clone(e.rest), e.id})
	l.owedBytes += len(e.rest)
	return true
}

// paidLocked forgets the first n.
func (l *Log) paidLocked(n int) {
	for _, o := range l.owed[:n] {
		l.owedBytes -= len(o.rest)
	}
	l.owed = append([]owed(nil), l.owed[n:]...)
}
