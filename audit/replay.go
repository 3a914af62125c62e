package audit

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
)

// replay reads the last segment, or if the tree's file does not help all of
// them, checks it against the last checkpoint, and cuts off a torn end.
func (l *Log) replay(found *recovered) error {
	last := len(l.started) - 1
	t, err := treeAt(int64(l.started[last]), l.marks.tree)
	var r *replayer
	if err == nil && l.marks.last.Tree.N >= t.n {
		r, err = l.read(last, t, nil)
	} else if err == nil {
		err = errors.New("the last checkpoint is older than the last segment")
	}
	if err == nil {
		err = l.reconcile(int64(l.started[last]), r.tree.stored)
	} else {
		r, err = l.readAll()
	}
	if err != nil {
		return err
	}
	r.tree.stored = nil
	l.tree = r.tree
	found.clean, found.torn, found.tail = r.lastKind == LogClose, r.torn, r.tail
	if r.torn > 0 {
		found.tornSum = hex.EncodeToString(r.tornSum)
	}
	l.seg, err = openTail(l.cfg.disk, l.path(segmentName(l.started[last])), r.end)
	if err != nil {
		return err
	}
	if r.end > 0 {
		if l.began, err = l.beganAt(l.started[last]); err != nil {
			return err
		}
	}
	return l.seg.clean()
}

// readAll reads every segment and makes the tree's file anew. That file is only
// a help: the lines decide. They are checked before it is written, as it may be
// needed to tell what changed.
func (l *Log) readAll() (*replayer, error) {
	if _, err := l.read(0, l.base(), func([]byte) error { return nil }); err != nil {
		return nil, err
	}
	if err := l.emptyTree(); err != nil {
		return nil, err
	}
	return l.read(0, l.base(), l.marks.tree.append)
}

// base returns the tree over what was removed.
func (l *Log) base() tree {
	return tree{n: l.retained.First, edge: slices.Clone(l.retained.Edge)}
}

// emptyTree makes the tree's file hold what is known of the removed records,
// each hash in its place, and nothing else.
func (l *Log) emptyTree() error {
	file := l.marks.tree
	file.off, file.dirty = tlog.StoredHashCount(l.retained.First)*tlog.HashSize, false
	if err := errors.Join(file.f.Truncate(0), file.f.Truncate(file.off)); err != nil {
		return err
	}
	for i, at := range edgeIndexes(l.retained.First) {
		if _, err := file.f.WriteAt(l.retained.Edge[i][:], at*tlog.HashSize); err != nil {
			return err
		}
	}
	return nil
}

// reconcile makes the tree's file hold stored from leaf n on, and no more.
func (l *Log) reconcile(n int64, stored []byte) error {
	file := l.marks.tree
	file.off = tlog.StoredHashCount(n) * tlog.HashSize
	file.dirty = true
	have := make([]byte, len(stored))
	got, err := file.f.ReadAt(have, file.off)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	same := 0
	for same < got && have[same] == stored[same] {
		same++
	}
	file.off += int64(same)
	if same == len(stored) {
		return file.clean()
	}
	return file.append(stored[same:])
}

// replayer reads lines into a tree.
type replayer struct {
	log      *Log
	tree     tree
	flush    func([]byte) error // takes stored hashes; nil keeps them
	lastKind Kind
	tail     checkpoint.Tail // records that are not signed
	end      int64           // of the last whole line in the last segment
	torn     int64
	tornSum  []byte
}

// read replays the segments from the i-th on.
func (l *Log) read(i int, t tree, flush func([]byte) error) (*replayer, error) {
	r := &replayer{log: l, tree: t, flush: flush}
	for ; i < len(l.started); i++ {
		if r.torn > 0 || r.tree.n != int64(l.started[i]) {
			return nil, l.refuse(hintVerify, "%s should begin with record %d", segmentName(l.started[i]), r.tree.n)
		}
		if err := r.segment(l.started[i], i == len(l.started)-1); err != nil {
			return nil, err
		}
	}
	if signed := l.marks.last.Tree.N; r.tree.n < signed {
		return nil, l.refuse(hintVerify, "it was cut: %d records were signed, and it holds %d", signed, r.tree.n)
	}
	if flush != nil {
		if err := flush(r.tree.stored); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *replayer) segment(first uint64, last bool) error {
	path := r.log.path(segmentName(first))
	if last { // a new log has none yet; it is never packed
		f, err := r.log.cfg.disk.Open(path, os.O_RDWR|os.O_CREATE, modeFile)
		if err != nil {
			return fmt.Errorf("opening a segment: %w", err)
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("opening a segment: %w", err)
		}
	}
	lines, err := r.log.lines(first)
	if err != nil {
		return fmt.Errorf("opening a segment: %w", err)
	}
	defer lines.Close()
	in := bufio.NewReaderSize(lines, MaxLine+2)
	r.end = 0
	for {
		line, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			r.torn = int64(len(line))
			sum := sha256.Sum256(line)
			r.tornSum = sum[:]
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("reading %s: %w", path, err)
		case err != nil:
			err = errors.New("a line is too long")
		default:
			err = r.line(line[:len(line)-1])
		}
		if err != nil {
			return r.log.refuse(hintVerify, "%s, record %d, byte %d: %v", path, r.tree.n, r.end, err)
		}
		r.end += int64(len(line))
	}
}

// unsigned takes a line if no checkpoint covers it.
func (r *replayer) unsigned(line []byte) error {
	signed := r.log.marks.last.Tree.N
	switch n := r.tree.n; {
	case n < signed:
		return nil
	case n == signed || n == r.log.retained.First:
		r.tail = checkpoint.Tail{First: n, Signed: r.log.marks.msg != nil, Closed: r.lastKind == LogClose}
	}
	return r.tail.Add(line)
}

// line adds one whole line. What was signed is checked by the root; what was
// not must at least be a record.
func (r *replayer) line(line []byte) error {
	if seq, ok := seqOf(line); !ok || seq != uint64(r.tree.n) {
		return errors.New("this is not the record that belongs here")
	}
	signed := r.log.marks.last.Tree
	if r.tree.n >= signed.N-1 {
		var rec struct{ Kind Kind }
		if err := json.Unmarshal(line, &rec); err != nil {
			return fmt.Errorf("this is not a record: %w", err)
		}
		if err := r.unsigned(line); err != nil {
			return err
		}
		r.lastKind = rec.Kind
	}
	r.tree.add(r.log.leafHash(line))
	if r.tree.n == signed.N && r.tree.head().Hash != signed.Hash {
		return errors.New("the records up to here are not those that were signed")
	}
	if r.flush != nil && len(r.tree.stored) > 1<<20 {
		if err := r.flush(r.tree.stored); err != nil {
			return err
		}
		r.tree.stored = r.tree.stored[:0]
	}
	return nil
}
