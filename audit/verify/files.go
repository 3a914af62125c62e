package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// open finds the files.
func (c *checker) open() error {
	f, size, err := openRegular(filepath.Join(c.dir, "checkpoints"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if c.newest != nil {
			return c.gone()
		}
		if _, err := os.Stat(c.dir); err != nil {
			return fmt.Errorf("reading the log: %w", err)
		}
		return &Problem{BadHistory, "checkpoints", 0, -1, -1, "the file is missing"}
	case err != nil:
		return err
	}
	c.history = newHistory(f, size)
	if err := c.openNote(); err != nil {
		return err
	}
	f, size, err = openRegular(filepath.Join(c.dir, "tree"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil {
		c.stored = newStored(f, size, c.kept.First)
	}
	public, err := readSmall(filepath.Join(c.dir, "log.pub"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the log: %w", err)
	}
	if err != nil {
		c.Absent = append(c.Absent, "log.pub")
	} else if !bytes.Equal(public, []byte(c.keyText+"\n")) {
		return &Problem{WrongKey, "log.pub", 0, -1, -1, "this is not the key that the log is checked with"}
	}
	err = c.list()
	if c.listed != nil {
		c.listed()
	}
	return err
}

// gone tells of a log of which an anchor knows and that has no checkpoints, or
// is not there at all.
func (c *checker) gone() error {
	a := c.newest
	return &Problem{
		RolledBack, "checkpoints", 0, 0, a.Tree.N - 1,
		fmt.Sprintf("an anchor was signed over %d records at %s, and the log is gone, or its checkpoints are: this is a rollback to nothing",
			a.Tree.N, a.Time.Format(time.RFC3339)),
	}
}

func (c *checker) list() error {
	names, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	c.packed, c.plain, c.moved = map[int64]bool{}, map[int64]bool{}, map[int64]bool{}
	for _, d := range names {
		name := d.Name()
		first, packed, ok := segment.Parse(name)
		switch {
		case ok && packed:
			c.packed[first] = true
		case ok:
			c.plain[first] = true
		case name != "checkpoints" && name != "tree" && name != "log.pub" && name != "retained":
			c.Unknown = append(c.Unknown, name)
		}
		if ok {
			c.starts = append(c.starts, first)
		}
	}
	slices.Sort(c.starts)
	c.starts = slices.Compact(c.starts)
	n, _ := slices.BinarySearch(c.starts, c.kept.First)
	for _, first := range c.starts[:n] {
		c.Leftover = append(c.Leftover, c.nameOf(first))
	}
	c.starts = c.starts[n:]
	c.Segments = len(c.starts)
	return c.openLive()
}

// openLive opens the last segment, to be read no further than it goes now: what
// is written while the rest is read is newer than the checkpoints that were
// read, and no checkpoint would cover it.
func (c *checker) openLive() error {
	if len(c.starts) == 0 || !c.plain[c.starts[len(c.starts)-1]] {
		return nil
	}
	f, size, err := openRegular(filepath.Join(c.dir, segment.Name(c.starts[len(c.starts)-1])))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // packed meanwhile
	}
	if err != nil {
		return err
	}
	c.live, c.liveSize = f, size
	return nil
}

// nameOf returns the file that a segment is read from.
func (c *checker) nameOf(first int64) string {
	if c.plain[first] {
		return segment.Name(first)
	}
	return segment.PackedName(first)
}

// maxSmall bounds the files that are read as a whole.
const maxSmall = 2 * checkpoint.MaxSize

// readSmall reads a regular file, of one that is longer no more than shows that.
func readSmall(path string) ([]byte, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, min(size, maxSmall+1)))
	if err != nil {
		return nil, fmt.Errorf("reading the log: %w", err)
	}
	return data, nil
}

// openRegular refuses what could be a link to somewhere else, or would wait for
// a writer.
func openRegular(path string) (*os.File, int64, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the log: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, 0, &Problem{Malformed, path, 0, -1, -1, "it is not a regular file"}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) // it may have been replaced
	if err != nil {
		return nil, 0, fmt.Errorf("reading the log: %w", err)
	}
	return f, st.Size(), nil
}
