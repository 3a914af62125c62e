package audit

import (
	"context"
	"errors"
	"io/fs"
)

// File, Info and Opener let the tests put a file system that fails on cue
// under a log.
type (
	File   = file
	Info   = info
	Opener = opener
)

// WithOpener returns c with another file system.
func (c Config) WithOpener(o Opener) Config {
	c.open = o
	return c
}

// OpenFile is the real one.
func OpenFile(path string, flag int, perm fs.FileMode) (File, error) {
	return openFile(path, flag, perm)
}

// Line returns the line that a Log would write for r, with sum for its keyed
// hash.
func Line(r *Record, sum func(string) string) []byte {
	enc := encoder{sum: sum}
	enc.encode(r)
	return append(appendHead(nil, r.Seq, appendStamp(nil, r.Time.UTC()), r.ID), enc.buf...)
}

// MaxOwedBytes is how much of done records is kept while the log cannot be written.
const MaxOwedBytes = maxOwedBytes

// AppendGone is Append for a caller who leaves while the record waits: ctx is
// done already, and asked only then.
func (l *Log) AppendGone(ctx context.Context, r *Record) error {
	err := l.submit(ctx, l.entry(r), r)
	if errors.Is(err, errLeft) {
		err = ctx.Err()
	}
	return err
}

// NoFlusher has no timer write what is left: only who comes next does.
func (l *Log) NoFlusher() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushing = true
}

// LeftMany is how many done records are left before one that comes writes.
const LeftMany = leftMany

// Plain reports whether text stands for itself in a line.
func Plain(s string) bool { return plain(s) }

// Encode appends the part of r's line that follows its id to buf.
func Encode(buf []byte, r *Record, sum func(string) string) []byte {
	enc := encoder{buf: buf, sum: sum}
	enc.encode(r)
	return enc.buf
}
