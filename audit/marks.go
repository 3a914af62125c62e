package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// The files of a log, beside its segments.
const (
	fileCheckpoints = "checkpoints" // every signed checkpoint
	fileTree        = "tree"        // the hashes of the Merkle tree; can be made anew from the segments
	filePublic      = "log.pub"     // the key that checkpoints are verified with
)

// segmentName returns the name of the segment that begins with record first.
func segmentName(first uint64) string { return segment.Name(int64(first)) }

// marks is the signed side of the log: what follows the segments twice a second.
type marks struct {
	mu       sync.Mutex // guards all of it; held over I/O, since nothing waits for it but checkpoints
	hist     *tail
	tree     *tail
	unstored []byte // hashes that are not in tree yet
	last     checkpoint.Checkpoint
	msg      []byte // last, signed; nil if there is none
	anchored bool   // last is on the disk, and beside the key
}

// newest returns the last checkpoint, nil for none. Its user holds mu, or is
// the only one.
func (m *marks) newest() *checkpoint.Checkpoint {
	if m.msg == nil {
		return nil
	}
	return &m.last
}

func (m *marks) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.hist.f.Close(), m.tree.f.Close())
}

// mark signs a checkpoint over all records so far. If that fails no more
// records are taken until it succeeds: they could be cut off unseen.
func (l *Log) mark() ([]byte, error) {
	l.marks.mu.Lock()
	defer l.marks.mu.Unlock()
	msg, err := l.markLocked()
	if err != nil {
		l.failed(err, 0)
	}
	return msg, err
}

// markLocked goes from the truth outwards, and syncs each step before the
// next: lines, tree, history, anchor. After a crash at any point each of them
// covers at least as much as the one after it.
func (l *Log) markLocked() ([]byte, error) {
	m := l.marks
	l.turn.Lock()
	head, seg, upto := l.tree.head(), l.seg, l.seg.off
	l.unsigned.after = span{}
	if len(m.unstored) == 0 { // as ever: what was stored makes room for what comes
		m.unstored, l.tree.stored = l.tree.stored, m.unstored
	} else {
		m.unstored = append(m.unstored, l.tree.stored...)
		l.tree.stored = l.tree.stored[:0]
	}
	l.turn.Unlock()

	if err := l.inPlace(seg); err != nil {
		return nil, err
	}
	if m.msg != nil && m.anchored && head.N == m.last.Tree.N {
		return m.msg, nil
	}
	if l.cfg.Durability == Process { // else each batch was synced
		if err := seg.sync(upto); err != nil {
			return nil, err
		}
	}
	if err := m.store(); err != nil {
		return nil, err
	}
	if m.msg == nil || head.N != m.last.Tree.N {
		if err := l.sign(head); err != nil {
			return nil, err
		}
	}
	if err := m.hist.sync(m.hist.off); err != nil {
		return nil, err
	}
	if err := l.writeAnchor(m.msg); err != nil {
		return nil, fmt.Errorf("keeping the checkpoint beside the key: %w", err)
	}
	m.anchored = true
	l.turn.Lock()
	l.unsigned.since = l.unsigned.after
	l.turn.Unlock()
	l.signed.Store(uint64(m.last.Tree.N))
	l.freshMark()
	return m.msg, nil
}

// sign adds a checkpoint over head to the history.
func (l *Log) sign(head tlog.Tree) error {
	m := l.marks
	next := checkpoint.Checkpoint{Origin: l.keys.verifier.Name(), Tree: head, Time: l.cfg.Now().Round(0)}
	if m.msg != nil {
		next.Number = m.last.Number + 1
	}
	msg, err := next.Sign(l.keys.signer)
	if err != nil {
		return err
	}
	if err := m.hist.append(checkpoint.Append(nil, msg)); err != nil {
		return err
	}
	m.last, m.msg, m.anchored = next, msg, false
	return nil
}

// store brings the tree's file up to date.
func (m *marks) store() error {
	if len(m.unstored) > 0 {
		if err := m.tree.append(m.unstored); err != nil {
			return err
		}
		m.unstored = m.unstored[:0]
	}
	return m.tree.sync(m.tree.off)
}

// inPlace finds a hand on the files: one that is gone, replaced or cut would
// make the log say yes to records that nobody can read later.
func (l *Log) inPlace(seg *tail) error {
	for _, t := range []*tail{seg, l.marks.hist, l.marks.tree} {
		if err := t.inPlace(); err != nil {
			return err
		}
	}
	return errors.Join(l.marks.hist.check(), l.marks.tree.check())
}

// writeAnchor replaces the checkpoint that is kept beside the key: who can only
// reach the log's directory cannot put an old copy there unseen.
func (l *Log) writeAnchor(msg []byte) error {
	return l.replaceFile(l.cfg.KeyFile+suffixAnchor, msg)
}

// prepare makes the log ready for a batch. Only the leader calls it.
func (l *Log) prepare(broken *fault) error {
	if broken != nil {
		if err := l.repair(); err != nil {
			return err
		}
	}
	// One that began later than now was begun by a wrong clock, and would last too long.
	if !l.turning && l.seg.off < l.cfg.SegmentSize && (l.began.IsZero() || l.cfg.Now().Sub(l.began).Abs() < l.cfg.SegmentAge) {
		return nil
	}
	if err := l.rotate(); err != nil {
		return fmt.Errorf("beginning a new segment: %w", err)
	}
	return nil
}

// rotate ends the segment, signed, and begins the next. Once it has tried to make that
// file it has to succeed before anything else is written, whatever the clock says then: the
// file's name tells where the segment before it ends.
func (l *Log) rotate() error {
	l.marks.mu.Lock()
	defer l.marks.mu.Unlock()
	if _, err := l.markLocked(); err != nil {
		return err
	}
	first := uint64(l.tree.n)
	l.turning = true
	next, err := openTail(l.cfg.disk, l.path(segmentName(first)), 0)
	if err != nil {
		return err
	}
	st, err := next.f.stat()
	if err == nil && st.size > 0 {
		err = fmt.Errorf("%s is there already, and not empty", next.path)
	}
	if err == nil {
		err = l.cfg.disk.SyncDir(l.cfg.Dir)
	}
	if err != nil {
		return errors.Join(err, next.f.Close())
	}
	l.turn.Lock()
	defer l.turn.Unlock()
	old := l.seg
	l.seg, l.began, l.started, l.turning = next, time.Time{}, append(l.started, first), false
	select {
	case l.turned <- struct{}{}:
	default:
	}
	return old.f.Close()
}

// repair makes good what can be made good: it cuts off half a piece, puts
// deleted files back out of the open ones, and signs what is unsigned.
func (l *Log) repair() error {
	l.marks.mu.Lock()
	defer l.marks.mu.Unlock()
	if err := l.mend(); err != nil {
		return err
	}
	_, err := l.markLocked()
	return err
}

func (l *Log) mend() error {
	l.turn.Lock()
	defer l.turn.Unlock()
	for _, step := range []func() error{l.mendDir, l.publish, l.putNote} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, t := range []*tail{l.seg, l.marks.hist, l.marks.tree} {
		err := t.inPlace()
		if errors.Is(err, errGone) {
			if err = t.restore(l.cfg.disk); err == nil {
				err = l.cfg.disk.SyncDir(l.cfg.Dir)
			}
		}
		if err != nil {
			return err
		}
		_ = t.check() // finds what clean has to cut off
		if err := t.clean(); err != nil {
			return err
		}
		if err := t.check(); err != nil {
			return err
		}
	}
	for _, first := range l.started[:len(l.started)-1] {
		if _, err := statPath(l.path(segmentName(first))); err == nil {
			continue
		}
		if _, err := statPath(l.path(segment.PackedName(int64(first)))); err != nil {
			return fmt.Errorf("an older segment is missing; put it back, and the log goes on: %w", err)
		}
	}
	return nil
}

// mendDir makes the directory again, and locks it, if it was removed. One that was moved
// away, or lies below another, can be put back, and nothing is begun in its place.
func (l *Log) mendDir() error {
	mine, err := l.dir.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(l.cfg.Dir); err == nil && os.SameFile(mine, there) {
		return nil
	}
	if st, ok := mine.Sys().(*syscall.Stat_t); ok && st.Nlink > 0 {
		return fmt.Errorf("%s is not the log's directory any more; put that back, and the log goes on", l.cfg.Dir)
	}
	old := l.dir
	if err := l.lock(); err != nil {
		return err
	}
	return old.Close()
}

// putNote puts the note of what was removed back where it is not: without it the log would
// not be known to begin where it does.
func (l *Log) putNote() error {
	if len(l.note) == 0 {
		return nil
	}
	if _, err := statPath(l.path(fileRetained)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.replaceFile(l.path(fileRetained), l.note)
}

func (l *Log) path(name string) string { return filepath.Join(l.cfg.Dir, name) }
