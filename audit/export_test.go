package audit

import "io/fs"

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
	return append(appendHead(nil, r.Seq, r.Time.UTC(), r.ID), enc.buf...)
}
