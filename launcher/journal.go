package launcher

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// journal says what may exist of a run. Nearly all of it follows from the cell's
// id; the rest is here.
type journal struct {
	Cell    string    `json:"cell"`
	Run     string    `json:"run"`
	Index   int       `json:"index"`
	Policy  string    `json:"policy"`
	PID     int       `json:"pid"` // of the launcher; means nothing once the lock is free
	Created time.Time `json:"created"`
	Step    string    `json:"step"`             // the one that was begun last
	Export  string    `json:"export,omitempty"` // directory that is being filled
	Started bool      `json:"started"`          // the log may have a run.start
}

var cellID = regexp.MustCompile(`^[a-z2-7]{8}$`)

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newCellID is random: ids are never meant to be guessed or reused.
func newCellID() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails
	return lowerBase32.EncodeToString(b[:])
}

func (l *Launcher) journalPath(id string) string { return filepath.Join(l.journalDir(), id+".json") }

func (l *Launcher) lockPath(id string) string { return filepath.Join(l.journalDir(), id+".lock") }

// errLive says that a launcher at work holds a cell.
var errLive = errors.New("in use")

// lockCell takes a cell for this process, until the file is closed or the
// process is gone. It makes the lock if there is none.
func (l *Launcher) lockCell(id string) (*os.File, error) {
	path := l.lockPath(id)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errLive
			}
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		// Somebody may have removed it between our open and our lock.
		ours, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(ours, there) {
			return f, nil
		}
		_ = f.Close()
	}
}

// begin takes a cell with a free index and writes its journal.
func (l *Launcher) begin(ctx context.Context, j *journal) (lock *os.File, err error) {
	unlock, err := lockPath(ctx, l.journalDir())
	if err != nil {
		return nil, err
	}
	defer unlock()
	used, err := l.usedIndices()
	if err != nil {
		return nil, err
	}
	next, err := l.nextIndex()
	if err != nil {
		return nil, err
	}
	for tries := 0; used[next]; tries++ {
		if tries == l.cfg.Cells {
			return nil, fmt.Errorf("all %d cells are in use: wait for a run to end, or `sallyport reconcile`", l.cfg.Cells)
		}
		next = (next + 1) % l.cfg.Cells
	}
	j.Index = next
	// The index is spent before it is used, and comes round again after all the
	// others: nothing may still know its address by the cell that had it before.
	err = writeFile(l.nextPath(), strconv.AppendInt(nil, int64((next+1)%l.cfg.Cells), 10), 0o600)
	if err != nil {
		return nil, err
	}
	lock, err = l.lockCell(j.Cell)
	if err != nil {
		return nil, err
	}
	if err := l.writeJournal(j); err != nil {
		return nil, errors.Join(err, l.forget(j.Cell, lock))
	}
	return lock, nil
}

func (l *Launcher) nextPath() string { return filepath.Join(l.journalDir(), "next") }

func (l *Launcher) nextIndex() (int, error) {
	data, err := os.ReadFile(l.nextPath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(string(data))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s: %q is not an index", l.nextPath(), data)
	}
	return n % l.cfg.Cells, nil
}

// usedIndices are those of every journal, dead or alive.
func (l *Launcher) usedIndices() (map[int]bool, error) {
	used := make(map[int]bool)
	ids, err := l.journals()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if j, err := l.readJournal(id); err == nil {
			used[j.Index] = true
		}
	}
	return used, nil
}

// journals lists the cells that have a journal or a lock.
func (l *Launcher) journals() ([]string, error) {
	entries, err := os.ReadDir(l.journalDir())
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		id, _, ok := strings.Cut(e.Name(), ".")
		if ok && cellID.MatchString(id) && (len(ids) == 0 || ids[len(ids)-1] != id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func (l *Launcher) readJournal(id string) (*journal, error) {
	data, err := os.ReadFile(l.journalPath(id))
	if err != nil {
		return nil, err
	}
	var j journal
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, fmt.Errorf("reading journal %s: %w", l.journalPath(id), err)
	}
	if j.Cell != id {
		return nil, fmt.Errorf("reading journal %s: it is of cell %q", l.journalPath(id), j.Cell)
	}
	return &j, nil
}

func (l *Launcher) writeJournal(j *journal) error {
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return writeFile(l.journalPath(j.Cell), data, 0o600)
}

// forget removes a journal and its lock, and lets go of it.
func (l *Launcher) forget(id string, lock *os.File) error {
	var errs []error
	for _, path := range []string{l.journalPath(id) + ".new", l.journalPath(id), l.lockPath(id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, lock.Close())...)
}

// lockPath takes an exclusive lock on a directory.
func lockPath(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := waitLock(ctx, f, unix.LOCK_EX); err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// waitLock waits for a lock. On an error it has closed f, or will once it has it.
func waitLock(ctx context.Context, f *os.File, how int) error {
	got := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), how)
			if !errors.Is(err, unix.EINTR) {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			_ = f.Close()
			return &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
		return nil
	case <-ctx.Done():
		go func() { // the wait cannot be broken off, only what comes of it be dropped
			if <-got == nil {
				_ = f.Close()
			}
		}()
		return ctx.Err()
	}
}
