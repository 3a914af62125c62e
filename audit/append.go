package audit

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"sallyport/audit/checkpoint"
)

// Group commit: who comes while nobody writes becomes the leader and writes
// its own record at once, without a change of goroutine. Who comes meanwhile
// queues; when the batch is out the first of the queue leads, and writes for
// all that wait. Encoding is done outside; only what depends on the order
// (number, time, id, hash) is the leader's.

// entry is a record on its way.
type entry struct {
	rest []byte // its line from the kind on; empty for a probe
	time time.Time
	id   string
	seq  uint64
	err  error
	owed bool // it tells of what is over, and is kept if it cannot be written
	left bool // nobody waits for it: see leave

	with []*entry // of the same caller; they are written with it, or not either

	state atomic.Int32 // waiting, then one of the others
	wake  chan signal  // cap 1
}

type signal int

const (
	done signal = iota + 1
	lead
)

const (
	waiting   int32 = iota
	taken           // it is being written, or leads
	abandoned       // its caller has left
)

var entries = sync.Pool{New: func() any { return &entry{wake: make(chan signal, 1)} }}

// entry encodes r.
func (l *Log) entry(r *Record) *entry {
	e := l.probe()
	enc := encoder{buf: e.rest, sum: l.sum}
	enc.encode(r)
	e.rest, e.time, e.id, e.owed = enc.buf, r.Time, r.ID, r.Kind == Done
	return e
}

// probe returns an entry that has a fault mended, and no line of its own.
func (l *Log) probe() *entry {
	e, ok := entries.Get().(*entry)
	if !ok {
		panic("audit: pool holds no entry")
	}
	e.rest, e.time, e.id, e.seq, e.err, e.owed, e.left = e.rest[:0], time.Time{}, "", 0, nil, false, false
	e.state.Store(waiting)
	return e
}

// free gives e, and what goes with it, to whoever needs an entry next.
func (e *entry) free() {
	for _, w := range e.with {
		entries.Put(w)
	}
	clear(e.with)
	e.with = e.with[:0]
	entries.Put(e)
}

// place tells r where e stands in the log.
func (e *entry) place(r *Record) { r.Schema, r.Seq, r.Time, r.ID = Schema, e.seq, e.time, e.id }

// errLeft says that gone was closed before the record's turn came.
var errLeft = errors.New("gone before its turn")

// waits is who waits for a record: a context. It is asked for its channel only if
// there is something to wait for, since a context makes one when it is asked first.
type waits interface{ Done() <-chan struct{} }

// submit has e written and tells each of rs, which are e's and then those of
// what goes with it, its place. It waits for its turn until who is done; a
// nil who never is.
func (l *Log) submit(who waits, e *entry, rs ...*Record) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		e.free()
		return ErrClosed
	}
	leading := l.enqueueLocked(e)
	l.mu.Unlock()
	return l.await(who, e, leading, rs...)
}

// submitLast is submit for the record that closes the log.
func (l *Log) submitLast(r *Record) error {
	e := l.entry(r)
	l.mu.Lock()
	leading := l.enqueueLocked(e)
	l.mu.Unlock()
	return l.await(nil, e, leading, r)
}

// enqueueLocked reports whether e is to lead.
func (l *Log) enqueueLocked(e *entry) (leading bool) {
	l.queue = append(l.queue, e)
	if l.leading {
		return false
	}
	l.leading = true
	return true
}

func (l *Log) await(who waits, e *entry, leading bool, rs ...*Record) error {
	if !leading {
		var gone <-chan struct{}
		if who != nil {
			gone = who.Done()
		}
		select {
		case s := <-e.wake:
			leading = s == lead
		case <-gone:
			if e.state.CompareAndSwap(waiting, abandoned) {
				l.owe(e)
				return errLeft // who leads next drops e
			}
			leading = <-e.wake == lead
		}
	}
	if leading {
		l.lead(e)
	}
	err := e.err
	if err == nil && len(rs) > 0 {
		e.place(rs[0])
		for i, r := range rs[1:] {
			e.with[i].place(r)
		}
	}
	e.free()
	return err
}

// crowdedFor is for how many batches after one of many the next are expected to
// be of many too: a turn in vain costs less than a write too much.
const crowdedFor = 16

// lead writes all that wait, among them self, and hands the lead on.
func (l *Log) lead(self *entry) {
	if l.crowded > 0 {
		runtime.Gosched() // one write for many is worth a turn
	}
	l.mu.Lock()
	batch := l.queue
	l.queue, l.spare = l.spare[:0], nil
	l.left, l.leftBytes = 0, 0
	l.writing = l.cfg.Now()
	l.mu.Unlock()

	mine := batch[:0]
	for _, e := range batch {
		// Who was made leader is taken already, and who has left cannot change his mind.
		if e == self || e.left || e.state.CompareAndSwap(waiting, taken) {
			mine = append(mine, e)
		}
	}
	l.commit(mine, self)
	clear(batch)
	l.mu.Lock()
	l.writing, l.spare = time.Time{}, batch
	l.handOnLocked()
	l.mu.Unlock()
}

// tell has all of a batch but self, who tells, go on with what became of it.
func (l *Log) tell(batch []*entry, self *entry, err error) {
	waited := 0
	for _, e := range batch {
		if e.left {
			entries.Put(e)
			continue
		}
		waited++
		e.err = err
		if e != self {
			e.wake <- done // and is its caller's again
		}
	}
	if l.crowded = max(l.crowded-1, 0); waited > 1 {
		l.crowded = crowdedFor
	}
}

// handOnLocked makes the first who still waits the leader.
func (l *Log) handOnLocked() {
	for _, e := range l.queue {
		if !e.left && e.state.CompareAndSwap(waiting, taken) {
			l.crowded = crowdedFor
			e.wake <- lead
			return
		}
	}
	l.queue = slices.DeleteFunc(l.queue, func(e *entry) bool { return !e.left }) // whose callers have gone
	l.leading = false
	l.flushLaterLocked()
}

// fault is a time in which records are refused.
type fault struct {
	since   time.Time
	cause   error // the first
	last    error
	refused int
}

func (f *fault) error() error {
	err := fmt.Errorf("audit log cannot be written since %s, %d records refused: %w",
		f.since.UTC().Format(time.RFC3339), f.refused, f.cause)
	if f.last.Error() != f.cause.Error() {
		err = fmt.Errorf("%w; now: %w", err, f.last)
	}
	return err
}

// failed notes that records were refused because of err.
func (l *Log) failed(err error, records int) {
	now := l.cfg.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil {
		l.fault = &fault{since: now, cause: err}
	}
	l.fault.last = err
	l.fault.refused += records
}

// before is what stands before a batch's own lines: the gap record of a fault,
// and records that are owed.
type before struct {
	broken *fault // nil for none
	owed   []owed
}

func (l *Log) beforeBatch() before {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := before{owed: l.owed}
	if l.fault != nil {
		f := *l.fault
		b.broken = &f
	}
	return b
}

// commit writes a batch, mending first what is broken, and tells those of it but
// self. Either all of it is in the log, or none.
func (l *Log) commit(batch []*entry, self *entry) {
	b := l.beforeBatch()
	err := l.prepare(b.broken)
	if err == nil {
		err = l.writeBatch(b, batch, self)
	}
	if errors.Is(err, errUnsigned) { // only who leads writes, so it is so once
		if _, err = l.mark(); err == nil {
			err = l.writeBatch(b, batch, self)
		}
	}
	if err != nil {
		l.failed(err, l.refused(batch))
		l.tell(batch, self, err)
		l.keepRefusals() // by who writes: this may hang as a record does
	}
}

// refused returns how many records of a batch were not written, and are owed to
// nobody.
func (l *Log) refused(batch []*entry) (n int) {
	for _, e := range batch {
		if len(e.rest) > 0 && !l.owe(e) {
			n += 1 + len(e.with)
		}
	}
	return n
}

// written forgets what a batch has told.
func (l *Log) written(b before) {
	if b.broken == nil && len(b.owed) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.broken != nil {
		l.fault = nil
	}
	l.paidLocked(len(b.owed))
}

// writeBatch writes the lines of batch, after what comes before them, and tells those
// of it once they are written: nobody waits for the tree, which a checkpoint finds whole
// since turn is held.
func (l *Log) writeBatch(b before, batch []*entry, self *entry) error {
	l.turn.Lock()
	defer l.turn.Unlock()
	now := l.cfg.Now().UTC()
	if err := l.checkSegment(now); err != nil {
		return err
	}
	now = now.Round(0)
	if l.overdue(now) {
		return errUnsigned
	}
	l.buf, l.ends, l.stamp = append(l.buf[:0], leafPrefix...), l.ends[:0], appendStamp(l.stamp[:0], now)
	if b.broken != nil {
		e := l.entry(b.broken.gap(now, len(b.owed)))
		l.assemble(e, now)
		entries.Put(e)
	}
	for _, o := range b.owed {
		l.assemble(&entry{rest: o.rest, id: o.id}, now)
	}
	for _, e := range batch {
		if len(e.rest) > 0 {
			l.assemble(e, now)
		}
		for _, w := range e.with {
			l.assemble(w, now)
		}
	}
	if len(l.ends) > 0 {
		if err := l.put(now); err != nil {
			return err
		}
	}
	l.written(b)
	l.tell(batch, self, nil)
	l.grow()
	l.shrink()
	return nil
}

// put writes what is in buf to the segment.
func (l *Log) put(now time.Time) error {
	before := l.seg.off
	if err := l.seg.append(l.buf[len(leafPrefix):]); err != nil {
		return err
	}
	if l.cfg.Durability == Disk {
		if err := l.seg.f.Sync(); err != nil {
			l.seg.undo(before)
			return err
		}
		l.seg.synced = l.seg.off
	}
	if l.began.IsZero() {
		l.began = now
	}
	l.noteUnsigned(now)
	return nil
}

// grow adds the lines in buf, which are written, to the tree. Each is hashed
// where it stands: the newline before it makes room for the leaf's prefix.
func (l *Log) grow() {
	at := 0
	for _, end := range l.ends {
		copy(l.buf[at:], leafPrefix)
		l.tree.add(sha256.Sum256(l.buf[at : end-1]))
		at = end - len(leafPrefix)
	}
}

// errUnsigned says that a checkpoint has to be signed first.
var errUnsigned = errors.New("the records before it are not signed yet")

// overdue reports whether a record of now would be too far from one that no
// checkpoint covers. Its user holds turn. The clock may have been set, so both
// directions count.
func (l *Log) overdue(now time.Time) bool {
	s := l.unsigned.since.with(now)
	return s.last.Sub(s.first) > checkpoint.SignWithin
}

func (l *Log) noteUnsigned(now time.Time) {
	l.unsigned.since, l.unsigned.after = l.unsigned.since.with(now), l.unsigned.after.with(now)
}

// span holds the earliest and the latest time of some records; zero for none.
type span struct{ first, last time.Time }

// with returns s with one more.
func (s span) with(at time.Time) span {
	if s.first.IsZero() {
		return span{at, at}
	}
	if at.Before(s.first) {
		s.first = at
	}
	if at.After(s.last) {
		s.last = at
	}
	return s
}

// checkEvery is how often a batch looks after its file. A look costs as much
// as half a write; what was written to a deleted file meanwhile is not lost,
// since the file can be restored from the open one.
const checkEvery = time.Millisecond

func (l *Log) checkSegment(now time.Time) error {
	if d := now.Sub(l.checked); d >= 0 && d < checkEvery {
		return nil
	}
	l.checked = now
	return l.seg.check()
}

// assemble puts the whole line of e into buf.
func (l *Log) assemble(e *entry, now time.Time) {
	stamp := l.stamp
	if y := e.time.Year(); e.time.IsZero() || y < 1 || y > 9999 {
		e.time = now
	} else {
		e.time = e.time.UTC().Round(0)
		stamp = appendStamp(nil, e.time)
	}
	if e.id == "" {
		e.id = l.ids.next(now)
	}
	e.seq = uint64(l.tree.n) + uint64(len(l.ends))
	l.buf = appendHead(l.buf, e.seq, stamp, e.id)
	l.buf = append(l.buf, e.rest...)
	l.buf = append(l.buf, '\n')
	l.ends = append(l.ends, len(l.buf))
}

// shrink lets go of a buffer that one large batch has blown up.
func (l *Log) shrink() {
	if cap(l.buf) > 4<<20 {
		l.buf, l.ends = nil, nil
	}
}

// gap returns the record that tells of f; so many records follow that were kept.
func (f *fault) gap(now time.Time, kept int) *Record {
	return &Record{Kind: Gap, Error: f.cause.Error(), Data: mustJSON(gapData{
		Cause: "refused", Refused: f.refused, Late: kept, Since: f.since.UTC(), Until: now,
	})}
}

// gapData is what the data of a gap record holds.
type gapData struct {
	Cause   string    `json:"cause"` // refused, crash
	Refused int       `json:"refused,omitempty"`
	Late    int       `json:"late,omitempty"` // done records that were kept meanwhile, and follow
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	// TornBytes of a line that was not finished were cut off; Torn is their
	// SHA-256.
	TornBytes int64  `json:"torn_bytes,omitempty"`
	Torn      string `json:"torn,omitempty"`
	// Anchor says what is wrong with the checkpoint that is kept beside the key.
	Anchor string `json:"anchor,omitempty"`
}

// idSource makes ULIDs that rise within a millisecond. Its user holds turn.
type idSource struct {
	entropy *ulid.MonotonicEntropy
	id      ulid.ULID
	low     []byte // scratch
}

func newIDSource() *idSource {
	return &idSource{entropy: ulid.Monotonic(bufio.NewReaderSize(rand.Reader, 4096), 0), low: make([]byte, 10)}
}

func (s *idSource) next(now time.Time) string {
	ms := min(ulid.Timestamp(now), ulid.MaxTime())
	if err := s.entropy.MonotonicRead(ms, s.low); err != nil { // no room left in this millisecond
		rand.Read(s.low)
	}
	if err := errors.Join(s.id.SetTime(ms), s.id.SetEntropy(s.low)); err != nil {
		panic("audit: " + err.Error()) // ms and the length are right
	}
	return s.id.String()
}
