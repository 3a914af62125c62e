// Package audit appends records to a tamper-evident log.
//
// Every record is one line of JSON and one leaf of a Merkle tree (RFC 6962);
// the tree's root is signed every half second. [Log.Append] returns once
// the line is written, or says that it is not: what cannot be recorded must not
// be done. It trusts the key file and whoever calls it for the facts; it never
// trusts text, which sandboxes control, never leaves a number out, and never
// goes on silently after a crash, a full disk or a hand on its files.
package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/checkpoint"
)

// Durability is how safe a record is when Append returns.
type Durability int

// The durabilities. The zero Durability is Process.
const (
	// Process means written to the file: safe when this process dies, not when
	// the machine does.
	Process Durability = iota + 1
	// Disk means synced to the disk. Those who wait share one sync.
	Disk
)

// ParseDurability reads "process" or "disk".
func ParseDurability(s string) (Durability, error) {
	for _, d := range []Durability{Process, Disk} {
		if s == d.String() {
			return d, nil
		}
	}
	return 0, fmt.Errorf("durability %q is neither process nor disk", s)
}

// String returns "process" or "disk".
func (d Durability) String() string {
	switch d {
	case Process:
		return "process"
	case Disk:
		return "disk"
	}
	return fmt.Sprintf("durability(%d)", int(d))
}

// Config is what a Log needs.
type Config struct {
	Dir     string           // of the log; made if missing
	KeyFile string           // signing key, outside Dir; made at the first Open
	Now     func() time.Time // required

	Durability  Durability    // default Process
	SegmentSize int64         // a segment that is longer is ended; default 64 MiB
	SegmentAge  time.Duration // as is one whose first record is older; default 24 h
	Pack        bool          // segments that have ended are packed with Zstandard
	Keep        time.Duration // segments whose records are all older are removed; 0 keeps them for ever
	Interval    time.Duration // between checkpoints while there are records; default 500 ms
	Origin      string        // name of a new log in its checkpoints; default sallyport.internal/audit/ and a random tag
	Version     string        // of the program, for log.open

	// Anchors are where this machine cannot change a checkpoint again. Each gets
	// the newest one; what was signed while it was busy is left out. After an
	// error it is tried again, at first after Interval and then less and less
	// often, and a record of kind anchor says so, as another does when it
	// succeeds again. Default: none.
	Anchors []AnchorTo

	disk disk // for tests; default the real one
}

// ErrClosed is returned by what is called after Close.
var ErrClosed = errors.New("audit log is closed")

// ErrLocked is wrapped by Open's error when another process writes the log.
var ErrLocked = errors.New("another process is writing this log")

// Log appends records. It is safe for use by many goroutines.
//
// Locks are taken in the order tidying, marks, turn, mu; that of refusals before mu alone.
type Log struct {
	*Hasher
	cfg  Config
	keys *keys
	sum  func(string) string // Hash, made a value once
	dir  *os.File            // locked as long as the log is open

	mu      sync.Mutex // guards the fields of this block; never held over I/O
	queue   []*entry   // waiting to be written
	spare   []*entry   // the next queue's memory
	leading bool       // one of those who wait, or waited, is writing
	closed  bool
	fault   *fault // why records are refused; nil while all is well
	writing time.Time

	left      int // records in queue for which nobody waits
	leftBytes int
	flushing  bool        // flusher is running
	flusher   *time.Timer // writes them if nobody else does; nil until it is needed

	owed      []owed // done records that wait for the log to go on
	owedBytes int

	// turn guards what a batch changes. Who leads, and so is the only one to
	// write, holds it for each batch.
	turn    sync.Mutex
	seg     *tail
	began   time.Time // of the first record in seg; zero if it has none
	started []uint64  // first sequence number of each segment
	tree    tree
	note    []byte // the signed note of what was removed; nil for none
	buf     []byte
	ends    []int  // where the lines in buf end
	stamp   []byte // the batch's time, as text
	sha     hash.Hash
	leaf    tlog.Hash // scratch
	ids     *idSource

	unsigned struct {
		since span // the records that no checkpoint covers
		after span // those that the checkpoint being made will not cover
	}
	checked time.Time // when the segment was last looked after
	turning bool      // the next segment's file may be there: nothing goes to this one any more; the leader's own
	crowded int       // for so many more batches others are expected: one was of many, or left some waiting; the leader's own

	refusals refusalFile // how many were refused, for the process after this one

	marks  *marks        // signed checkpoints
	signed atomic.Uint64 // records that the newest one covers

	tidying  sync.Mutex           // held while segments are packed or removed; guards the next two once the log is open
	retained checkpoint.Retention // what was removed last; zero for nothing
	leftover []uint64             // of it, segments that may still be there
	turned   chan struct{}        // cap 1: a segment has ended

	stop    chan struct{}      // closed to end the goroutines
	life    context.Context    //nolint:containedctx // of the goroutines
	end     context.CancelFunc // ends life
	running sync.WaitGroup
	anchors []*anchor
}

const (
	defaultSegment  = 64 << 20
	defaultAge      = 24 * time.Hour
	defaultInterval = 500 * time.Millisecond
)

func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" || c.KeyFile == "" || c.Now == nil {
		return c, errors.New("audit: directory, key file and clock are all required")
	}
	if c.Durability == 0 {
		c.Durability = Process
	}
	if c.Durability != Process && c.Durability != Disk {
		return c, fmt.Errorf("audit: no such durability: %v", c.Durability)
	}
	if c.SegmentSize == 0 {
		c.SegmentSize = defaultSegment
	}
	if c.SegmentAge == 0 {
		c.SegmentAge = defaultAge
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.SegmentSize < 0 || c.SegmentAge < 0 || c.Interval < 0 || c.Keep < 0 {
		return c, errors.New("audit: segment size, ages and interval must not be negative")
	}
	if c.disk == nil {
		c.disk = osDisk{}
	}
	return c, nil
}

// Open opens the log in cfg.Dir for writing, making it if it is new.
//
// At most one torn line at the end, which nobody was told is written, is cut
// off; the log says so. A log that holds less than was signed, or something
// else, does not open: see [RecoveryError].
func Open(cfg Config) (*Log, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Log{
		cfg: cfg, sha: sha256.New(), ids: newIDSource(),
		stop: make(chan struct{}), turned: make(chan struct{}, 1),
	}
	l.life, l.end = context.WithCancel(context.Background()) //nolint:forbidigo // a log lives until it is closed
	for _, a := range cfg.Anchors {
		l.anchors = append(l.anchors, &anchor{AnchorTo: a, fresh: make(chan struct{}, 1), state: AnchorState{Name: a.Name}})
	}
	if err := l.open(); err != nil {
		l.end()
		return nil, errors.Join(err, l.release())
	}
	l.running.Go(l.run)
	if cfg.Pack || cfg.Keep > 0 {
		l.running.Go(l.keep)
	}
	for _, a := range l.anchors {
		l.running.Go(func() { l.ship(a) })
	}
	return l, nil
}

func (l *Log) open() error {
	if err := outside(l.cfg.KeyFile, l.cfg.Dir); err != nil {
		return err
	}
	if err := l.lock(); err != nil {
		return err
	}
	found, err := l.recover()
	if err != nil {
		return err
	}
	if err := l.begin(found); err != nil {
		return fmt.Errorf("beginning to write the audit log: %w", err)
	}
	return nil
}

// begin writes the records that open the log, and signs them.
func (l *Log) begin(found *recovered) error {
	open := Record{Kind: LogOpen, Data: mustJSON(map[string]any{
		"verifier": l.keys.public, "durability": l.cfg.Durability.String(), "version": l.cfg.Version,
		"pid": os.Getpid(),
	})}
	e, recs := l.entry(&open), []*Record{&open}
	if gap := found.gap(); gap != nil { // both or neither: what it tells is known only until then
		e.with, recs = append(e.with, l.entry(gap)), append(recs, gap)
	}
	if err := l.submit(nil, e, recs...); err != nil {
		return err
	}
	l.openRefusals()
	_, err := l.mark()
	return err
}

// write appends one of the log's own records.
func (l *Log) write(r *Record) error {
	e := l.entry(r)
	return l.submit(nil, e, r)
}

func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("audit: " + err.Error())
	}
	return b
}

// run signs checkpoints, and tries to go on after a fault even if nobody
// appends.
func (l *Log) run() {
	tick := time.NewTicker(l.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			if l.Ready() != nil {
				_ = l.submit(nil, l.probe()) // Ready tells
			} else {
				_, _ = l.mark() // a failure is a fault now
			}
		}
	}
}

// Close writes log.close and a last checkpoint. Records that are waiting are
// written before; later ones are refused with [ErrClosed].
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = true
	l.mu.Unlock()

	close(l.stop)
	l.end()
	l.running.Wait()
	rec := Record{Kind: LogClose}
	err := l.submitLast(&rec)
	var last []byte
	if err == nil {
		last, err = l.mark()
	}
	if err == nil {
		err = l.shipLast(last)
	}
	if err = errors.Join(err, l.release()); err != nil {
		return fmt.Errorf("closing the audit log: %w", err)
	}
	return nil
}

// release closes the files and, with the directory, gives up the lock.
func (l *Log) release() error {
	l.turn.Lock()
	defer l.turn.Unlock()
	var errs []error
	if l.seg != nil {
		errs = append(errs, l.seg.f.Close())
	}
	if l.marks != nil {
		errs = append(errs, l.marks.close())
	}
	l.refusals.close()
	if l.dir != nil {
		errs = append(errs, l.dir.Close())
	}
	return errors.Join(errs...)
}

// Append writes r and returns when it is as durable as the log promises. It
// sets Schema, Seq, and where they are empty Time and ID. Text is made
// printable and bounded on its way into the log; r keeps its own.
//
// After an error the record must be taken as not written, and what it is about
// as not allowed. ctx is asked as long as the record waits for its turn; once
// it is being written, Append waits for the outcome.
//
// A record of kind [Done] prevents nothing. Append returns once it is queued, sets
// nothing in it, and asks ctx only at first. It is written before whatever is
// appended later, with the next record or after 5 ms ([Log.Checkpoint] and
// [Log.Close] wait for it). If it cannot be written it is kept, within bounds, and
// written when the log goes on.
func (l *Log) Append(ctx context.Context, r *Record) error {
	if err := forCallers(r.Kind); err != nil {
		return err
	}
	err := ctx.Err()
	switch {
	case err != nil:
	case r.Kind == Done:
		err = l.leave(l.entry(r))
	default:
		err = l.submit(ctx, l.entry(r), r)
	}
	if errors.Is(err, errLeft) {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("appending an audit record: %w", err)
	}
	return nil
}

// AppendAll writes records that nothing lies between, in their order and in one
// piece: all of them are in the log when it returns nil, and after an error none.
// Apart from that it is [Log.Append] for each; none may be of kind [Done].
func (l *Log) AppendAll(ctx context.Context, rs []*Record) error {
	if len(rs) == 0 {
		return nil
	}
	for _, r := range rs {
		if err := forCallers(r.Kind); err != nil || r.Kind == Done {
			return cmp.Or(err, errDoneWithOthers)
		}
	}
	err := ctx.Err()
	if err == nil {
		e := l.entry(rs[0])
		for _, r := range rs[1:] {
			e.with = append(e.with, l.entry(r))
		}
		err = l.submit(ctx, e, rs...)
	}
	if errors.Is(err, errLeft) {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("appending %d audit records: %w", len(rs), err)
	}
	return nil
}

var errDoneWithOthers = errors.New("appending audit records: one of kind done is appended by itself, since nobody waits for it")

// forCallers refuses the kinds that the log alone writes.
func forCallers(k Kind) error {
	switch k {
	case "", LogOpen, LogClose, LogPack, LogRetain:
		return fmt.Errorf("appending an audit record: kind %q is not for callers", k)
	default:
		return nil
	}
}

// Sync brings every record so far to the disk, whatever the durability.
func (l *Log) Sync(ctx context.Context) error {
	_, err := l.Checkpoint(ctx)
	return err
}

// Checkpoint signs all records so far, brings them to the disk and returns the
// signed note: what an anchor keeps. If nothing was appended it is the last one.
func (l *Log) Checkpoint(ctx context.Context) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("signing an audit checkpoint: %w", err)
	}
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	err := l.settle()
	var msg []byte
	if err == nil {
		msg, err = l.mark()
	}
	if err != nil {
		return nil, fmt.Errorf("signing an audit checkpoint: %w", err)
	}
	return msg, nil
}

// stuckAfter is how long a write may take before the log is not ready.
const stuckAfter = 5 * time.Second

// Ready returns nil if records can be written, or why not: since when, and how
// many were refused.
func (l *Log) Ready() error {
	now := l.cfg.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return ErrClosed
	case l.fault != nil:
		return l.fault.error()
	case !l.writing.IsZero() && now.Sub(l.writing) > stuckAfter:
		return fmt.Errorf("audit log: a write has taken since %s", l.writing.UTC().Format(time.RFC3339))
	}
	return nil
}

// Signed returns how many records the newest checkpoint covers: all, but for the
// last half second's.
func (l *Log) Signed() uint64 { return l.signed.Load() }

// Verifier returns the public key that the log's checkpoints are signed with,
// in the form of golang.org/x/mod/sumdb/note.
func (l *Log) Verifier() string { return l.keys.public }
