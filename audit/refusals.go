package audit

import (
	"bytes"
	"encoding/json"
	"os"
	"sync"
	"time"
)

// How many records were refused while the log could not be written is known to this
// process alone, and would end with it. So it stands in a file beside the key that has its
// room on the disk beforehand: to write over it takes none. It is a help: where it cannot
// be kept, the log does without.

const suffixRefused = ".refused"

// refusedRoom is how large the file is, always.
const refusedRoom = 1 << 10

// refusals is what the file says, padded with blanks. The zero refusals tells of nothing.
type refusals struct {
	Log     string    `json:"log,omitempty"`  // its origin
	Next    uint64    `json:"next,omitempty"` // number of the gap record that was to tell of them
	Since   time.Time `json:"since,omitzero"`
	Refused int       `json:"refused,omitempty"`
	Cause   string    `json:"cause,omitempty"`
}

// refusalFile keeps them. The zero refusalFile does not.
type refusalFile struct {
	mu sync.Mutex // guards f; held over I/O. It is taken before mu, with nothing else.
	f  file
}

func (l *Log) refusedPath() string { return l.cfg.KeyFile + suffixRefused }

// loadRefusals returns what an earlier process refused that no gap record tells of; l.tree
// is known.
func (l *Log) loadRefusals() (r refusals) {
	text, err := l.readSmall(l.refusedPath())
	if err != nil || json.Unmarshal(bytes.TrimRight(text, " \n"), &r) != nil {
		return refusals{}
	}
	if r.Log != l.keys.verifier.Name() || r.Next < uint64(l.tree.n) || r.Refused <= 0 {
		return refusals{}
	}
	return r
}

// openRefusals makes room for them. By then it is recorded what the file said.
func (l *Log) openRefusals() {
	f, err := l.cfg.disk.Open(l.refusedPath(), os.O_RDWR|os.O_CREATE, modeSecret)
	if err != nil {
		return
	}
	l.refusals.f = f
	l.refusals.write(refusals{})
	_ = f.Sync() // has the room set aside
}

const modeSecret = 0o600

func (r *refusalFile) write(v refusals) {
	text := mustJSON(v)
	if len(text) >= refusedRoom {
		v.Cause = "" // the longest is an error's text
		text = mustJSON(v)
	}
	text = append(text, bytes.Repeat([]byte(" "), refusedRoom-1-len(text))...)
	_, _ = r.f.WriteAt(append(text, '\n'), 0) // a help
}

// keepRefusals writes down how many were refused since the fault began.
func (l *Log) keepRefusals() {
	l.turn.Lock()
	next := uint64(l.tree.n)
	l.turn.Unlock()
	l.refusals.mu.Lock()
	defer l.refusals.mu.Unlock()
	l.mu.Lock()
	var f fault
	if l.fault != nil {
		f = *l.fault
	}
	l.mu.Unlock()
	if l.refusals.f == nil || f.refused == 0 {
		return
	}
	l.refusals.write(refusals{
		Log: l.keys.verifier.Name(), Next: next, Since: f.since.UTC().Round(0), Refused: f.refused, Cause: f.cause.Error(),
	})
}

func (r *refusalFile) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.f != nil {
		_ = r.f.Close()
		r.f = nil
	}
}
