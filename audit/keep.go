package audit

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
)

// What becomes of segments that have ended: they are packed, and when their
// time is over removed. Neither is ever waited for by a record.

// fileRetained is the signed note of what was removed.
const fileRetained = checkpoint.RetentionFile

// suffixNew is what a file's name has at its end until the file is whole.
const suffixNew = ".new"

// tidyEvery is how often segments are looked after, beside after each new one.
const tidyEvery = time.Hour

// keep looks after the segments that have ended.
func (l *Log) keep() {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		l.tidy()
		select {
		case <-l.stop:
			return
		case <-l.turned:
		case <-tick.C:
		}
	}
}

// tidy packs and removes what is due. What fails is told in a record, and tried
// again the next time.
func (l *Log) tidy() {
	if l.cfg.Keep > 0 {
		if _, err := l.Retain(l.cfg.Keep); err != nil {
			_ = l.write(&Record{Kind: LogRetain, Error: err.Error()}) // if not even that, the log has a fault
		}
	}
	if l.cfg.Pack {
		if err := l.packAll(); err != nil {
			_ = l.write(&Record{Kind: LogPack, Error: err.Error()})
		}
	}
}

func (l *Log) stopping() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// starts returns the first record of each segment; all but the last have ended.
func (l *Log) starts() []uint64 {
	l.turn.Lock()
	defer l.turn.Unlock()
	return append([]uint64(nil), l.started...)
}

func (l *Log) packAll() error {
	l.tidying.Lock()
	defer l.tidying.Unlock()
	starts := l.starts()
	for i := 0; i+1 < len(starts) && !l.stopping(); i++ {
		head := segment.Head{First: int64(starts[i]), Records: int64(starts[i+1] - starts[i])}
		if _, err := statPath(l.path(segment.Name(head.First))); errors.Is(err, fs.ErrNotExist) {
			continue // it is packed
		}
		if err := l.pack(head); err != nil {
			return fmt.Errorf("packing %s: %w", segment.Name(head.First), err)
		}
	}
	return nil
}

// packData is what the data of a log.pack record holds.
type packData struct {
	Segment string `json:"segment"`
	File    string `json:"file"`
	First   int64  `json:"first"`
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"`  // of lines
	Packed  int64  `json:"packed"` // of the file
	SHA256  string `json:"sha256"` // of the file
}

// pack puts a packed file in the place of a segment: written, read back and
// compared, told in a record under a checkpoint, and only then given its name.
func (l *Log) pack(head segment.Head) error {
	plain, packed := l.path(segment.Name(head.First)), l.path(segment.PackedName(head.First))
	data := packData{Segment: segment.Name(head.First), File: segment.PackedName(head.First), First: head.First, Records: head.Records}
	err := l.writePacked(plain, packed+suffixNew, head, &data)
	if err == nil {
		err = l.write(&Record{Kind: LogPack, Data: mustJSON(data)})
	}
	if err == nil {
		_, err = l.mark()
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(l.cfg.disk.Remove(packed+suffixNew)))
	}
	if err := l.cfg.disk.Rename(packed+suffixNew, packed); err != nil {
		return errors.Join(err, ignoreMissing(l.cfg.disk.Remove(packed+suffixNew)))
	}
	if err := l.cfg.disk.SyncDir(l.cfg.Dir); err != nil {
		return err
	}
	return l.cfg.disk.Remove(plain)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (l *Log) writePacked(plain, packed string, head segment.Head, data *packData) error {
	in, size, err := l.openWhole(plain)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := l.cfg.disk.Open(packed, os.O_RDWR|os.O_CREATE|os.O_TRUNC, modeFile)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // synced below
	lines, file := sha256.New(), sha256.New()
	w := &counter{w: io.MultiWriter(io.NewOffsetWriter(out, 0), file)}
	if err := segment.Pack(w, io.TeeReader(io.NewSectionReader(in, 0, size), lines), head); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return err
	}
	data.Bytes, data.Packed, data.SHA256 = size, w.n, hex.EncodeToString(file.Sum(nil))
	return readsBack(out, w.n, file, lines)
}

// readsBack checks that a packed file is the one that was written, and holds
// the lines that it was made of.
func readsBack(f io.ReaderAt, size int64, file, lines hash.Hash) error {
	again, unpacked := sha256.New(), sha256.New()
	r, err := segment.Unpack(io.TeeReader(io.NewSectionReader(f, 0, size), again))
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(unpacked, r); err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}
	if string(again.Sum(nil)) != string(file.Sum(nil)) || string(unpacked.Sum(nil)) != string(lines.Sum(nil)) {
		return errors.New("it does not read back as it was written")
	}
	return nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func (l *Log) openWhole(path string) (file, int64, error) {
	f, err := l.cfg.disk.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, st.size, nil
}

// lines opens the lines of a segment, packed or not.
func (l *Log) lines(first uint64) (io.ReadCloser, error) {
	f, size, err := l.openWhole(l.path(segment.Name(int64(first))))
	if err == nil {
		return reading{io.NewSectionReader(f, 0, size), f}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if f, size, err = l.openWhole(l.path(segment.PackedName(int64(first)))); err != nil {
		return nil, err
	}
	r, err := segment.Unpack(io.NewSectionReader(f, 0, size))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return unpacking{r, f}, nil
}

type reading struct {
	io.Reader
	io.Closer
}

type unpacking struct {
	io.ReadCloser
	f file
}

func (u unpacking) Close() error { return errors.Join(u.ReadCloser.Close(), u.f.Close()) }

// beganAt returns the time of the first record of a segment.
func (l *Log) beganAt(first uint64) (time.Time, error) {
	in, err := l.lines(first)
	if err != nil {
		return time.Time{}, err
	}
	defer in.Close()
	line, err := bufio.NewReaderSize(in, MaxLine+2).ReadSlice('\n')
	if err != nil {
		return time.Time{}, err
	}
	var r struct{ Time time.Time }
	if err := json.Unmarshal(line, &r); err != nil {
		return time.Time{}, err
	}
	return r.Time, nil
}

// Removed is what [Log.Retain] removed; zero for nothing.
type Removed struct {
	Segments []string  `json:"segments"`
	Records  int64     `json:"records"`
	First    int64     `json:"first"`          // the first record that is kept
	From     time.Time `json:"from,omitzero"`  // of the first record that was ever removed
	Until    time.Time `json:"until,omitzero"` // of the first record that is kept
	Root     string    `json:"root,omitempty"` // over all records before First
}

// Retain removes the segments whose records are all older than keep, oldest
// first; the one that is written to stays. Each is read before, and must hold
// what was signed: else nothing is removed. What is removed is told in a record
// and in a signed note, both on the disk before the first file goes; the log
// verifies without the removed records from then on.
func (l *Log) Retain(keep time.Duration) (Removed, error) {
	if keep <= 0 {
		return Removed{}, errors.New("removing old segments: the time to keep must be more than nothing")
	}
	l.tidying.Lock()
	defer l.tidying.Unlock()
	if err := l.endRemoval(); err != nil { // that was told before, and failed
		return Removed{}, err
	}
	starts := l.starts()
	n, until, err := l.beyond(starts, l.cfg.Now().Add(-keep))
	if err != nil || n == 0 {
		return Removed{}, err
	}
	t, err := l.verified(starts[:n+1])
	if err != nil {
		return Removed{}, fmt.Errorf("nothing is removed, audit verify tells more: %w", err)
	}
	from := l.retained.From
	if l.retained.First == 0 {
		if from, err = l.beganAt(starts[0]); err != nil {
			return Removed{}, err
		}
	}
	out := Removed{Records: int64(starts[n] - starts[0]), First: t.n, From: from, Until: until, Root: t.head().Hash.String()}
	for _, first := range starts[:n] {
		out.Segments = append(out.Segments, segment.Name(int64(first)))
	}
	if err := l.noteRetained(out, t); err != nil {
		return Removed{}, fmt.Errorf("noting what is to be removed: %w", err)
	}
	return out, l.endRemoval()
}

// endRemoval removes what the note tells was removed, once the note is on the disk.
func (l *Log) endRemoval() error {
	l.turn.Lock()
	n, _ := slices.BinarySearch(l.started, uint64(l.retained.First))
	l.leftover = append(l.leftover, l.started[:n]...)
	l.started = l.started[n:]
	l.turn.Unlock()
	if len(l.leftover) == 0 {
		return nil
	}
	if err := l.cfg.disk.SyncDir(l.cfg.Dir); err != nil {
		return err
	}
	if err := l.removeSegments(l.leftover); err != nil {
		return err
	}
	l.leftover = nil
	return nil
}

// beyond returns how many segments have ended before a time. Each ended when the next one
// began; one that began later than now, or before the one before it, says what a wrong clock
// said, and those after it tell.
func (l *Log) beyond(starts []uint64, before time.Time) (n int, until time.Time, err error) {
	now := l.cfg.Now()
	var latest time.Time
	for i := range starts {
		at, err := l.beganAt(starts[i])
		if errors.Is(err, io.EOF) { // it has only just begun
			at, err = now, nil
		}
		if err != nil {
			return 0, time.Time{}, fmt.Errorf("reading when %s began: %w", segment.Name(int64(starts[i])), err)
		}
		if at.After(now) || at.Before(latest) {
			continue
		}
		if at.After(before) {
			break
		}
		n, until, latest = i, at, at
	}
	return n, until, nil
}

// verified reads all segments but the last of starts, and returns the tree over
// them if it is the beginning of the one that was signed last.
func (l *Log) verified(starts []uint64) (tree, error) {
	t := tree{n: l.retained.First, edge: append([]tlog.Hash(nil), l.retained.Edge...)}
	h := sha256.New()
	for i, first := range starts[:len(starts)-1] {
		if err := l.addSegment(&t, first, h); err != nil {
			return t, fmt.Errorf("%s: %w", segment.Name(int64(first)), err)
		}
		if t.n != int64(starts[i+1]) {
			return t, fmt.Errorf("%s ends with record %d", segment.Name(int64(first)), t.n-1)
		}
	}
	l.marks.mu.Lock()
	defer l.marks.mu.Unlock()
	signed := l.marks.last.Tree
	proof, err := tlog.ProveTree(signed.N, t.n, l.marks.tree)
	if err == nil {
		err = tlog.CheckTree(proof, signed.N, signed.Hash, t.n, t.head().Hash)
	}
	if err != nil {
		return t, fmt.Errorf("the records before %d are not those that were signed: %w", t.n, err)
	}
	return t, nil
}

func (l *Log) addSegment(t *tree, first uint64, h hash.Hash) error {
	f, err := l.lines(first)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, MaxLine+2)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			t.stored = nil
			return nil
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", t.n, err)
		}
		h.Reset()
		h.Write(leafPrefix)
		h.Write(line[:len(line)-1])
		t.add(tlog.Hash(h.Sum(nil)))
		t.stored = t.stored[:0]
	}
}

// noteRetained tells of a removal: in a record, which is signed, and in a note.
func (l *Log) noteRetained(out Removed, t tree) error {
	rec := Record{Kind: LogRetain, Data: mustJSON(out)}
	if err := l.write(&rec); err != nil {
		return err
	}
	if _, err := l.mark(); err != nil {
		return err
	}
	r := checkpoint.Retention{
		Origin: l.keys.verifier.Name(), First: out.First, Record: int64(rec.Seq), Time: rec.Time,
		From: out.From, Until: out.Until, Edge: t.edge,
	}
	msg, err := r.Sign(l.keys.signer)
	if err != nil {
		return err
	}
	path := l.path(fileRetained)
	if err := l.replaceFile(path, msg); err != nil {
		return err
	}
	l.retained = r
	l.turn.Lock()
	l.note = msg
	l.turn.Unlock()
	return nil
}

// replaceFile writes a file whole, or leaves the one that is there.
func (l *Log) replaceFile(path string, data []byte) error {
	f, err := l.cfg.disk.Open(path+suffixNew, os.O_RDWR|os.O_CREATE|os.O_TRUNC, modeFile)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = l.cfg.disk.Rename(path+suffixNew, path)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(l.cfg.disk.Remove(path+suffixNew)))
	}
	return nil
}

// removeSegments removes files, the oldest first.
func (l *Log) removeSegments(starts []uint64) error {
	for _, first := range starts {
		err := errors.Join(
			ignoreMissing(l.cfg.disk.Remove(l.path(segment.Name(int64(first))))),
			ignoreMissing(l.cfg.disk.Remove(l.path(segment.PackedName(int64(first))))))
		if err != nil {
			return fmt.Errorf("removing an old segment: %w", err)
		}
	}
	return l.cfg.disk.SyncDir(l.cfg.Dir)
}
