package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
)

// openNote reads the signed note of what was removed, if there is one.
func (c *checker) openNote() error {
	msg, err := readNote(c.dir)
	if err != nil || msg == nil {
		return err
	}
	c.note = msg
	if c.kept, err = checkpoint.OpenRetention(msg, c.key); err != nil {
		return &Problem{BadNote, "retained", 0, -1, -1, err.Error()}
	}
	c.Retained = &Retained{c.kept.First, c.kept.From, c.kept.Until, c.kept.Time, c.kept.Record}
	c.edge = edge{n: c.kept.First, roots: append([]tlog.Hash(nil), c.kept.Edge...)}
	return nil
}

// readNote returns nil if there is none.
func readNote(dir string) ([]byte, error) {
	msg, err := readSmall(filepath.Join(dir, "retained"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(msg) > maxSmall {
		err = &Problem{BadNote, "retained", 0, -1, -1, fmt.Sprintf("it has more than %d bytes", maxSmall)}
	}
	return msg, err
}

// removed passes over the checkpoints that were signed over records that are
// gone. The note must go on from one of them, and anchors must be among them.
func (c *checker) removed() error {
	first := c.kept.First
	for c.next != nil && c.next.Tree.N < first {
		if err := c.anchored(*c.next); err != nil {
			return err
		}
		c.signed.n, c.Signed = c.next.Tree.N, c.next.Tree
		if err := c.advance(); err != nil {
			return err
		}
	}
	if first == 0 {
		return nil
	}
	if c.next == nil || c.next.Tree.N != first || c.next.Tree.Hash != c.edge.root() {
		return &Problem{BadNote, "retained", 0, -1, -1, fmt.Sprintf("no checkpoint was signed over the first %d records as the note has them", first)}
	}
	if len(c.anchors) > 0 && c.anchors[0].Tree.N < first {
		return c.rewritten(c.anchors[0])
	}
	if c.stored == nil {
		return nil
	}
	return c.stored.removed(first, c.kept.Edge)
}

// anchored takes off the anchors that are the same as a checkpoint of which
// the records are gone.
func (c *checker) anchored(cp checkpoint.Checkpoint) error {
	for len(c.anchors) > 0 && c.anchors[0].Tree.N <= cp.Tree.N {
		if a := c.anchors[0]; a.Tree != cp.Tree {
			return c.rewritten(a)
		}
		c.anchors = c.anchors[1:]
	}
	return nil
}

func (c *checker) rewritten(a checkpoint.Checkpoint) error {
	return &Problem{
		Rewritten, "checkpoints", 0, 0, a.Tree.N - 1,
		fmt.Sprintf("the anchor of %s, over %d records, is not among the log's checkpoints", a.Time.Format(time.RFC3339), a.Tree.N),
	}
}

// tells checks the record that the note names.
func (c *checker) tells(line []byte) error {
	var r struct {
		Kind string
		Data struct{ First int64 }
	}
	if err := json.Unmarshal(line, &r); err != nil || r.Kind != "log.retain" || r.Data.First != c.kept.First {
		return c.problem(BadNote, "the note of what was removed names this record, and it does not tell of it")
	}
	return nil
}

// toldPacked notes what a record tells about a packed segment.
func (c *checker) toldPacked(line []byte) {
	var r struct {
		Kind string
		Data struct {
			First  int64
			SHA256 string
		}
	}
	if json.Unmarshal(line, &r) == nil && r.Kind == "log.pack" && r.Data.SHA256 != "" {
		c.told[r.Data.First] = r.Data.SHA256
	}
}

// packs compares the packed files with what the records tell of them: every
// byte of them counts, also those that make no difference to the lines.
func (c *checker) packs() error {
	for _, first := range c.starts {
		if !c.packed[first] {
			continue
		}
		sum, err := c.sumOf(first)
		if err != nil {
			return err
		}
		name := filepath.Base(c.packedPath(first))
		switch told := c.told[first]; {
		case told == "" && c.moved[first]: // it is told beyond what is read of the log
		case told == "":
			return &Problem{BadPack, name, 0, -1, -1, "no record tells that it was packed"}
		case told != sum:
			return &Problem{BadPack, name, 0, -1, -1, "it is not the file that was packed; the records that can be read in it are good"}
		}
	}
	return nil
}

// sumOf returns the SHA-256 of a packed file.
func (c *checker) sumOf(first int64) (string, error) {
	if sum, ok := c.sums[first]; ok {
		return sum, nil
	}
	f, _, err := openRegular(c.packedPath(first)) // its lines were read from the plain file
	if err != nil {
		return "", err
	}
	defer f.Close()
	return sumFile(f)
}
