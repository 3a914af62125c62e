// Package ledger keeps in a file how many octets were set aside for what is open, so
// that this is known after the process was killed.
//
// The file has a slot for each thing that is open, which is taken again when that has
// ended. A slot lies within one page and is written by one system call, so that a
// process which is killed has written it, or has not. It is not synced: what it is about
// ends with the machine. It trusts its directory to be nobody else's, and knows nothing
// of limits.
package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"sallyport/rules/limit"
)

const (
	slotSize = 64
	idSize   = 32 // of which an id has 26, and zeros
	side     = 16 // for each direction: the time of the newest, and how many

	// spare is how many slots are free before one is taken again: what it was about has
	// ended, and is in the log by then.
	spare = 64
)

// Ledger is safe for use by many goroutines.
type Ledger struct {
	f    *os.File
	left map[string]Left // of the process before; not changed after Open

	mu    sync.Mutex // guards the rest
	slots int64      // in the file
	free  []int64    // the one that is free for longest first
	kept  map[int64]bool
}

// Left is what the process before had set aside for something that it did not end.
type Left struct {
	At      [2]time.Time // of the newest, by direction
	Amounts [2]int64     // in all, or [limit.Unknown]

	slot int64
}

// Open opens the ledger, and reads what the process before left in it.
func Open(path string) (*Ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening what is set aside under limits: %w", err)
	}
	l := &Ledger{f: f, left: map[string]Left{}, kept: map[int64]bool{}}
	for b := make([]byte, slotSize); ; l.slots++ {
		switch _, err := f.ReadAt(b, l.slots*slotSize); {
		case errors.Is(err, io.EOF): // less than a slot is none
			return l, nil
		case err != nil:
			return nil, errors.Join(fmt.Errorf("reading what is set aside under limits: %w", err), f.Close())
		}
		if id, left := decode(b); id != "" {
			left.slot = l.slots
			l.left[id] = left
		}
	}
}

// Left returns what the process before had set aside for the thing with an id, and keeps
// it for the next. ok is false if nothing is known of it.
func (l *Ledger) Left(id string) (left Left, ok bool) {
	if left, ok = l.left[id]; ok {
		l.mu.Lock()
		l.kept[left.slot] = true
		l.mu.Unlock()
	}
	return left, ok
}

// Settle frees what [Ledger.Left] was not asked for. It is called once, before Enter.
func (l *Ledger) Settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.slots {
		if !l.kept[i] {
			l.free = append(l.free, i)
		}
	}
}

// Close closes the file, and leaves it as it is.
func (l *Ledger) Close() error { return l.f.Close() }

// Entry is the slot of something that is open.
type Entry struct {
	l    *Ledger
	slot int64
}

// Enter writes down what was set aside for the thing with an id, up to now.
func (l *Ledger) Enter(id string, now time.Time, amounts [2]int64) (*Entry, error) {
	if len(id) == 0 || len(id) > idSize {
		return nil, fmt.Errorf("setting octets aside: an id of %d octets", len(id))
	}
	e := &Entry{l, l.take()}
	var b [slotSize]byte
	copy(b[:], id)
	for d, n := range amounts {
		put(b[idSize+d*side:], now, n)
	}
	if err := e.write(0, b[:]); err != nil {
		e.Free()
		return nil, err
	}
	return e, nil
}

func (l *Ledger) take() (slot int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.free) < spare {
		l.slots++
		return l.slots - 1
	}
	slot, l.free = l.free[0], l.free[1:]
	return slot
}

// Note implements [limit.Entry].
func (e *Entry) Note(d limit.Direction, at time.Time, n int64) error {
	var b [side]byte
	put(b[:], at, n)
	return e.write(idSize+int64(d)*side, b[:])
}

func (e *Entry) write(off int64, b []byte) error {
	if _, err := e.l.f.WriteAt(b, e.slot*slotSize+off); err != nil {
		return fmt.Errorf("writing what is set aside under limits: %w", err)
	}
	return nil
}

// Free ends the entry: its slot is another's, later. It is called once.
func (e *Entry) Free() {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.l.free = append(e.l.free, e.slot)
}

func put(b []byte, at time.Time, n int64) {
	binary.LittleEndian.PutUint64(b, uint64(at.Unix()))
	binary.LittleEndian.PutUint64(b[8:], uint64(n))
}

func decode(b []byte) (id string, left Left) {
	n := 0
	for n < idSize && b[n] != 0 {
		n++
	}
	for d := range left.Amounts {
		at := b[idSize+d*side:]
		left.At[d] = time.Unix(int64(binary.LittleEndian.Uint64(at)), 0)
		left.Amounts[d] = int64(binary.LittleEndian.Uint64(at[8:]))
	}
	return string(b[:n]), left
}
