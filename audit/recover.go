package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// RecoveryError says why a log does not open: it is not what was signed. It is
// never mended by itself, since that would hide what happened.
type RecoveryError struct {
	Dir   string
	Fault string
	Hint  string // what to do, as a sentence that can be typed from
}

// Error implements error.
func (e *RecoveryError) Error() string {
	return fmt.Sprintf("audit log %s does not open: %s; %s", e.Dir, e.Fault, e.Hint)
}

const (
	hintVerify = "keep a copy, run audit verify on it, then restore the missing part or move the directory, the key's files and audit.pub away to begin a new log"
	hintKey    = "restore the key that belongs to this log, or move the directory away to begin a new log"
)

func (l *Log) refuse(hint, format string, args ...any) error {
	return &RecoveryError{Dir: l.cfg.Dir, Fault: fmt.Sprintf(format, args...), Hint: hint}
}

// recovered is what Open found.
type recovered struct {
	fresh   bool
	clean   bool // the last record is log.close
	torn    int64
	tornSum string
	anchor  string // what is wrong with the anchor
	tail    checkpoint.Tail
	refused refusals // that no record tells of
}

// gap returns the record that says what happened, nil if nothing did.
func (r *recovered) gap() *Record {
	if r.fresh || r.clean && r.torn == 0 && r.anchor == "" {
		return nil
	}
	data := gapData{
		Cause: "crash", TornBytes: r.torn, Torn: r.tornSum, Anchor: r.anchor, Refused: r.refused.Refused, Since: r.refused.Since,
	}
	text := "the log was not closed: records that were never acknowledged may be missing"
	if r.refused.Cause != "" {
		text += "; before, it could not be written: " + r.refused.Cause
	}
	if r.clean && r.torn == 0 {
		data.Cause, text = "anchor", "the checkpoint beside the key was "+r.anchor
	}
	return &Record{Kind: Gap, Error: text, Data: mustJSON(data)}
}

// lock makes the directory and takes it for this process alone.
func (l *Log) lock() error {
	if err := os.MkdirAll(l.cfg.Dir, modeDir); err != nil {
		return fmt.Errorf("making the audit log's directory: %w", err)
	}
	d, err := os.Open(l.cfg.Dir)
	if err != nil {
		return fmt.Errorf("opening the audit log's directory: %w", err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return errors.Join(fmt.Errorf("locking the audit log %s: %w", l.cfg.Dir, err), d.Close())
	}
	l.dir = d
	return nil
}

// recover reads what is there and readies the log to go on.
func (l *Log) recover() (*recovered, error) {
	starts, err := l.segments()
	if err != nil {
		return nil, err
	}
	if err := l.loadKeys(len(starts) > 0); err != nil {
		return nil, err
	}
	found := &recovered{fresh: len(starts) == 0}
	if starts, err = l.loadRetained(starts); err != nil {
		return nil, err
	}
	if l.marks, err = l.openMarks(); err != nil {
		return nil, err
	}
	anchor, err := l.loadAnchor(found)
	if err != nil {
		return nil, err
	}
	if found.fresh {
		if n := l.marks.last.Tree.N; n > 0 {
			return nil, l.refuse(hintVerify, "%d records were signed, and there is no segment", n)
		}
		starts = []uint64{0}
	}
	if err := l.checkStarts(starts); err != nil {
		return nil, err
	}
	l.started = starts
	if err := l.replay(found); err != nil {
		return nil, err
	}
	found.refused = l.loadRefusals()
	if err := l.checkAnchor(anchor); err != nil {
		return nil, err
	}
	if err := found.tail.End(anchor.Tree.N > 0 && anchor.Tree.N == l.marks.last.Tree.N); err != nil {
		return nil, l.refuse(hintVerify, "%v", err)
	}
	return found, errors.Join(l.publish(), l.cfg.disk.SyncDir(l.cfg.Dir))
}

// segments returns the first sequence number of each segment, in order.
func (l *Log) segments() ([]uint64, error) {
	names, err := os.ReadDir(l.cfg.Dir) // sorted
	if err != nil {
		return nil, fmt.Errorf("reading the audit log's directory: %w", err)
	}
	var starts []uint64
	for _, n := range names {
		first, _, ok := segment.Parse(n.Name())
		switch {
		case ok:
			starts = append(starts, uint64(first))
		case halfDone(n.Name()):
			if err := l.cfg.disk.Remove(l.path(n.Name())); err != nil {
				return nil, fmt.Errorf("clearing the audit log's directory: %w", err)
			}
		case strings.HasSuffix(n.Name(), ".jsonl"):
			return nil, l.refuse(hintVerify, "%s is not the name of a segment", n.Name())
		}
	}
	slices.Sort(starts)
	return slices.Compact(starts), nil // one may be there packed and plain
}

// halfDone reports whether a name is of a file that was not whole when an earlier
// process ended.
func halfDone(name string) bool {
	name, ok := strings.CutSuffix(name, suffixNew)
	_, _, isSegment := segment.Parse(name)
	return ok && (isSegment || slices.Contains([]string{fileRetained, filePublic, fileCheckpoints, fileTree}, name))
}

// loadRetained reads the note of what was removed, and ends a removal that was
// interrupted.
func (l *Log) loadRetained(starts []uint64) ([]uint64, error) {
	msg, err := l.readSmall(l.path(fileRetained))
	if errors.Is(err, fs.ErrNotExist) {
		return starts, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the note of what was removed: %w", err)
	}
	if l.retained, err = checkpoint.OpenRetention(msg, l.keys.verifier); err != nil {
		return nil, l.refuse(hintVerify, "its note of what was removed is not good: %v", err)
	}
	l.note = msg
	n, _ := slices.BinarySearch(starts, uint64(l.retained.First))
	if n == len(starts) {
		return nil, l.refuse(hintVerify, "it was kept from record %d on, and has no segment with it", l.retained.First)
	}
	return starts[n:], l.removeSegments(starts[:n])
}

// loadKeys reads the keys, and makes them for a log that is new.
func (l *Log) loadKeys(written bool) error {
	public, err := l.readSmall(l.path(filePublic))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the audit log's public key: %w", err)
	}
	_, err = os.Lstat(l.cfg.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && (written || len(public) > 0):
		return l.refuse(hintKey, "its signing key %s is gone", l.cfg.KeyFile)
	case errors.Is(err, fs.ErrNotExist):
		err = createKeys(l.cfg.KeyFile, l.cfg.Origin)
	}
	if err != nil {
		return err
	}
	if l.keys, err = loadKeys(l.cfg.KeyFile); err != nil {
		return err
	}
	if len(public) > 0 && strings.TrimSpace(string(public)) != l.keys.public {
		return l.refuse(hintKey, "%s is not the key it was signed with", l.cfg.KeyFile)
	}
	if l.Hasher, err = LoadHasher(l.cfg.KeyFile); err != nil {
		return err
	}
	l.sum = l.Hash
	return nil
}

// publish writes the public key into the log's directory, also in the place of
// one that is not whole.
func (l *Log) publish() error {
	want := l.keys.public + "\n"
	have, err := l.readSmall(l.path(filePublic))
	if err == nil && string(have) == want || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.replaceFile(l.path(filePublic), []byte(want))
}

// maxSmall bounds the files that are read as a whole.
const maxSmall = 64 << 10

// readSmall reads a file as a whole, and nothing but a regular file.
func (l *Log) readSmall(path string) ([]byte, error) {
	f, size, err := l.openWhole(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	if size > maxSmall {
		return nil, fmt.Errorf("%s has %d bytes", path, size)
	}
	data := make([]byte, size)
	_, err = f.ReadAt(data, 0)
	return data, err
}

// lastPart of a history is enough to hold its last whole note.
const lastPart = 4 * checkpoint.MaxSize

func (l *Log) openMarks() (*marks, error) {
	hist, err := openTail(l.cfg.disk, l.path(fileCheckpoints), 0)
	if err != nil {
		return nil, fmt.Errorf("opening the checkpoints: %w", err)
	}
	tree, err := openTail(l.cfg.disk, l.path(fileTree), 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the tree: %w", err), hist.f.Close())
	}
	m := &marks{hist: hist, tree: tree}
	st, err := hist.f.stat()
	if err == nil {
		err = l.loadLast(m, st.size)
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// loadLast reads the newest checkpoint; a torn one after it is cut off.
func (l *Log) loadLast(m *marks, size int64) error {
	part := make([]byte, min(size, lastPart))
	if _, err := m.hist.f.ReadAt(part, size-int64(len(part))); err != nil {
		return fmt.Errorf("reading the checkpoints: %w", err)
	}
	msg, torn := checkpoint.Last(part)
	m.hist.off = size - int64(torn)
	if msg == nil {
		if size > checkpoint.MaxSize {
			return l.refuse(hintVerify, "%s holds no checkpoint at its end", m.hist.path)
		}
		return nil
	}
	var err error
	if m.last, err = checkpoint.Open(msg, l.keys.verifier); err != nil {
		return l.refuse(hintVerify, "its last checkpoint is not good: %v", err)
	}
	m.msg = bytes.Clone(msg)
	return nil
}

// loadAnchor reads the checkpoint beside the key and compares it with the
// history: that one is written first, so it cannot be behind.
func (l *Log) loadAnchor(found *recovered) (checkpoint.Checkpoint, error) {
	last := l.marks.last
	msg, err := l.readSmall(l.cfg.KeyFile + suffixAnchor)
	if errors.Is(err, fs.ErrNotExist) {
		if l.marks.msg != nil {
			found.anchor = "missing"
		}
		return checkpoint.Checkpoint{}, nil
	}
	if err != nil {
		return checkpoint.Checkpoint{}, fmt.Errorf("reading the checkpoint beside the key: %w", err)
	}
	anchor, err := checkpoint.Open(msg, l.keys.verifier)
	if err != nil {
		found.anchor = fmt.Sprintf("not good: %v", err)
		return checkpoint.Checkpoint{}, nil
	}
	if anchor.After(l.marks.newest()) {
		return anchor, l.refuse(hintVerify, "it was cut back or is an old copy: %d records were signed at %s, and its own last checkpoint covers %d",
			anchor.Tree.N, anchor.Time.Format("2006-01-02 15:04:05"), last.Tree.N)
	}
	return anchor, nil
}

// checkAnchor compares the anchor's root with the tree.
func (l *Log) checkAnchor(anchor checkpoint.Checkpoint) error {
	if anchor.Tree.N == 0 {
		return nil
	}
	root, err := tlog.TreeHash(anchor.Tree.N, l.marks.tree)
	if err != nil {
		return err
	}
	if root != anchor.Tree.Hash {
		return l.refuse(hintVerify, "its first %d records are not those of the checkpoint beside the key", anchor.Tree.N)
	}
	return nil
}

// checkStarts finds a segment that is missing: each must begin where the one
// before it ends.
func (l *Log) checkStarts(starts []uint64) error {
	if starts[0] != uint64(l.retained.First) {
		return l.refuse(hintVerify, "its first segment %s is missing", segmentName(uint64(l.retained.First)))
	}
	last := int64(starts[len(starts)-1])
	_, plain := statPath(l.path(segment.Name(last)))
	if _, packed := statPath(l.path(segment.PackedName(last))); errors.Is(plain, fs.ErrNotExist) && packed == nil {
		return l.refuse(hintVerify, "the segment after %s is missing: only what has ended is packed", segment.PackedName(last))
	}
	for i, first := range starts[1:] {
		path := l.path(segmentName(starts[i]))
		seq, err := l.lastSeq(path)
		if errors.Is(err, fs.ErrNotExist) {
			path += segment.PackedSuffix
			seq, err = l.lastPacked(path, starts[i])
		}
		if err != nil {
			return l.refuse(hintVerify, "%v", err)
		}
		if seq+1 != first {
			return l.refuse(hintVerify, "%s ends with record %d, and the next segment begins with %d", path, seq, first)
		}
	}
	return nil
}

// lastSeq reads the number of a segment's last record.
func (l *Log) lastSeq(path string) (uint64, error) {
	f, err := l.cfg.disk.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	st, err := f.stat()
	if err != nil {
		return 0, err
	}
	part := make([]byte, min(st.size, MaxLine+2))
	if _, err := f.ReadAt(part, st.size-int64(len(part))); err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}
	line, ok := bytes.CutSuffix(part, []byte("\n"))
	if !ok {
		return 0, fmt.Errorf("%s does not end with a whole line", path)
	}
	line = line[bytes.LastIndexByte(line, '\n')+1:]
	seq, ok := seqOf(line)
	if !ok {
		return 0, fmt.Errorf("the last line of %s is not a record", path)
	}
	return seq, nil
}

// lastPacked is lastSeq for a packed segment, which tells it at its head.
func (l *Log) lastPacked(path string, first uint64) (uint64, error) {
	f, size, err := l.openWhole(path)
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	head, err := segment.ReadHead(io.NewSectionReader(f, 0, size))
	if err == nil && (head.First != int64(first) || head.Records < 1) {
		err = fmt.Errorf("%s says that it begins with record %d", path, head.First)
	}
	return first + uint64(head.Records) - 1, err
}

var headPrefix = []byte(`{"v":1,"seq":`)

// seqOf reads the number of a line that this program wrote.
func seqOf(line []byte) (uint64, bool) {
	rest, ok := bytes.CutPrefix(line, headPrefix)
	digits, _, ok2 := bytes.Cut(rest, []byte(","))
	if !ok || !ok2 {
		return 0, false
	}
	seq, err := strconv.ParseUint(string(digits), 10, 63)
	return seq, err == nil
}
