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
	DiskIO = disk
	Opener = func(path string, flag int, perm fs.FileMode) (File, error)
)

// WithOpener returns c with files that are opened otherwise.
func (c Config) WithOpener(o Opener) Config {
	return c.WithDisk(opening{o: o})
}

// opening is the real file system, but for how files are opened.
type opening struct {
	osDisk
	o Opener
}

func (d opening) Open(path string, flag int, perm fs.FileMode) (File, error) {
	return d.o(path, flag, perm)
}

// WithDisk returns c with another file system.
func (c Config) WithDisk(d DiskIO) Config {
	c.disk = d
	return c
}

// RealDisk is the real file system.
func RealDisk() DiskIO { return osDisk{} }

// PackAll packs the segments that have ended, now.
func (l *Log) PackAll() error { return l.packAll() }

// Abandon closes the files as the end of the process would.
func (l *Log) Abandon() error {
	close(l.stop)
	l.end()
	l.running.Wait()
	return l.release()
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
