package source

import (
	"bytes"
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"sallyport/broker/secret"
)

// Kept is a [Source] with what was last read of it. Where the store can tell
// cheaply that nothing has changed (files), it is not read again: a use costs
// one question to the kernel a file. Every other store is asked each time; those
// that are slow keep an answer for a minute themselves.
//
// A store that fails refuses, unless the document says on_error: keep: then the
// value that was good last serves on, and [Kept.Stale] tells so.
type Kept struct {
	src   Source
	keep  bool // on_error: keep
	now   func() time.Time
	turns sync.Mutex // held while a stamped store is read: one reads, the others wait

	mu    sync.Mutex // guards what follows
	last  []byte     // nil for none
	at    stamps     // of last; the zero value is never trusted
	since time.Time  // when the store began to fail
	err   error      // how it fails, while last serves on
	gone  int        // how often Forget was called: what was read before is not kept after
}

// stamper is a store that can tell whether its secret may have changed, without
// reading it.
type stamper interface {
	stamp() (stamps, error)
}

// stamps are the states of the files that a secret is read from.
type stamps [2]stamp

// stamp is the state of a file. Whatever changes its content, owner or mode
// changes ctime; a rename over it changes the inode.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

func stampOf(path string) (stamp, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return stamp{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, os.ErrInvalid
	}
	return stamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

// settled is how long a file must have been left alone before its stamp is
// believed: file systems count time in ticks of up to ten milliseconds, and
// some network ones in whole seconds.
const settled = 2 * time.Second

// settledAt reports whether every stamp is older than settled.
func (s stamps) settledAt(now time.Time) bool {
	for _, f := range s {
		if f != (stamp{}) && now.Sub(time.Unix(f.ctime.Unix())) < settled {
			return false
		}
	}
	return s != stamps{}
}

// String names the store for people.
func (k *Kept) String() string { return k.src.String() }

// Get returns the secret as it is now. The caller wipes it. An error names the
// store and what to do, never the secret.
func (k *Kept) Get(ctx context.Context) (secret.Value, error) {
	st, ok := k.src.(stamper)
	if !ok {
		return k.read(ctx, stamps{})
	}
	if v, ok := k.same(st); ok {
		return v, nil
	}
	k.turns.Lock()
	defer k.turns.Unlock()
	before, err := st.stamp()
	if err != nil {
		before = stamps{}
	}
	if v, ok := k.unchanged(before); ok { // who had the turn before us read it
		return v, nil
	}
	return k.read(ctx, before)
}

// same returns what was read last if the store has not changed since.
func (k *Kept) same(st stamper) (secret.Value, bool) {
	now, err := st.stamp()
	if err != nil {
		return secret.Value{}, false
	}
	return k.unchanged(now)
}

func (k *Kept) unchanged(now stamps) (secret.Value, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last == nil || k.at == (stamps{}) || k.at != now {
		return secret.Value{}, false
	}
	return secret.New(bytes.Clone(k.last)), true
}

// read asks the store itself; before is its state beforehand.
func (k *Kept) read(ctx context.Context, before stamps) (secret.Value, error) {
	k.mu.Lock()
	gone := k.gone
	k.mu.Unlock()
	v, err := k.src.Get(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		if !k.keep || k.last == nil {
			clear(k.last)
			k.last, k.at = nil, stamps{}
			return secret.Value{}, err
		}
		if k.err == nil {
			k.since = k.now()
		}
		k.at, k.err = stamps{}, err
		return secret.New(bytes.Clone(k.last)), nil
	}
	k.err, k.since = nil, time.Time{}
	trust := before.settledAt(k.now())
	if (trust || k.keep) && gone == k.gone {
		clear(k.last)
		k.last, k.at = bytes.Clone(v.Reveal()), stamps{}
	}
	if trust && gone == k.gone {
		k.at = before // a change since then has another stamp
	}
	return v, nil
}

// Stale tells since when, and why, a value serves on that the store no longer
// gives; err is nil if it is not so.
func (k *Kept) Stale() (since time.Time, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.since, k.err
}

// Forget wipes whatever is kept; the next use reads the store.
func (k *Kept) Forget() {
	k.mu.Lock()
	clear(k.last)
	k.last, k.at, k.err, k.since = nil, stamps{}, nil, time.Time{}
	k.gone++
	k.mu.Unlock()
	if f, ok := k.src.(interface{ forget() }); ok {
		f.forget()
	}
}
