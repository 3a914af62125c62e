package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path/filepath"

	"sallyport/audit/segment"
)

// lines are those of a segment, packed or not.
type lines struct {
	io.Reader
	close  []io.Closer
	first  int64
	packed bool
	file   io.Reader // the packed file, of which sum is taken
	sum    hash.Hash
}

// Close implements [io.Closer].
func (l *lines) Close() error {
	for _, c := range l.close {
		c.Close()
	}
	return nil // it was only read
}

// end takes the sum of a packed file whose lines were read to their end.
func (l *lines) end(c *checker) {
	if !l.packed {
		return
	}
	if _, err := io.Copy(io.Discard, l.file); err == nil { // what the decoder left
		c.sums[l.first] = hex.EncodeToString(l.sum.Sum(nil))
	}
}

func (c *checker) packedPath(first int64) string {
	return filepath.Join(c.dir, segment.PackedName(first))
}

// stoppable ends where nobody waits for what is read any more.
type stoppable struct {
	io.Reader
	stop func() bool
}

// Read implements [io.Reader].
func (s *stoppable) Read(p []byte) (int, error) {
	if s.stop() {
		return 0, ErrStopped
	}
	return s.Reader.Read(p)
}

// lines opens a segment.
func (c *checker) lines(first int64) (*lines, error) {
	l, err := c.segmentAt(first)
	if err == nil && c.stop != nil {
		l.Reader = &stoppable{l.Reader, c.stop}
	}
	return l, err
}

// segmentAt finds a segment that is packed while it is looked for all the same.
func (c *checker) segmentAt(first int64) (*lines, error) {
	if c.live != nil && first == c.lastStart() {
		return &lines{Reader: io.NewSectionReader(c.live, 0, c.liveSize), first: first}, nil
	}
	if c.plain[first] {
		f, _, err := openRegular(filepath.Join(c.dir, segment.Name(first)))
		if err == nil {
			return &lines{Reader: f, close: []io.Closer{f}, first: first}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		c.plain[first], c.packed[first], c.moved[first] = false, true, true
	}
	f, _, err := openRegular(c.packedPath(first))
	if err != nil {
		return nil, err
	}
	l := &lines{close: []io.Closer{f}, first: first, packed: true, sum: sha256.New()}
	l.file = io.TeeReader(f, l.sum)
	z, err := segment.Unpack(l.file)
	if err != nil {
		f.Close()
		return nil, c.problem(Malformed, "it cannot be unpacked: %v", err)
	}
	l.Reader, l.close = z, append(l.close, z)
	return l, nil
}

func sumFile(f io.Reader) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading the log: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
