// Package index keeps a SQLite copy of a log, for questions that reading the
// segments would take too long for.
//
// The segments are the truth: an index is made from them, follows them as they
// grow, and can be thrown away at any time. One that is damaged, of another log
// or of an older version is made anew; a file that is no index is never
// touched. It trusts no text of the log. It tells what the numbers of records show
// to be missing; whether the log is complete and unchanged is for audit/verify.
package index

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"modernc.org/sqlite"

	"sallyport/audit/query"
	"sallyport/control/durable"
)

// Index is an open index. It is safe for use by many goroutines but for Update
// and Close.
type Index struct {
	dir     string // of the log
	path    string
	waiting func()
	db      *sql.DB
	holes   []query.Hole
}

// Config says which index of which log.
type Config struct {
	Dir  string // of the log
	Path string // of the index
	// Own tells that nothing else is kept at Path: whatever is there and is no
	// index is one that was damaged. Its directory has to be private: who can put a
	// file there decides what is answered. Default: what is no index is refused.
	Own bool
	// Waiting is called when another process has been making or updating the
	// index for a second. Default: nothing is told.
	Waiting func()
	// Damaged is called before a damaged index is made anew by Open. Default:
	// nothing is told.
	Damaged func()
	// Tell is called by Records as by [query.RecordsFrom]. Default: nothing is told.
	Tell func(error)
}

const (
	magic       = "SQLite format 3\x00"
	application = 0x53504158 // in the file's header: SPAX
	version     = 8          // of the tables; another one is made anew
)

// ErrShared is wrapped by Open's error when others can write where the index is kept.
var ErrShared = errors.New("others can write to the directory of the index")

// ErrForeign is wrapped by Open's error when the file is no index.
var ErrForeign = errors.New("the file is not an index of a log")

// Open opens an index, making it if it is new or of no use any more. It holds
// what the last Update brought. It waits for others who make or update it.
func Open(ctx context.Context, cfg Config) (*Index, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("opening the index: %w", err)
	}
	x := &Index{dir: dir, path: cfg.Path, waiting: cfg.Waiting}
	if err := os.MkdirAll(filepath.Dir(x.path), 0o700); err != nil {
		return nil, fmt.Errorf("opening the index: %w", err)
	}
	if cfg.Own {
		if err := private(filepath.Dir(x.path)); err != nil {
			return nil, fmt.Errorf("opening the index: %w", err)
		}
	}
	if err := ours(x.path); err != nil && (!cfg.Own || !errors.Is(err, ErrForeign)) {
		return nil, err
	}
	unlock, err := x.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err = x.openOrMake(ctx, cfg.Damaged); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the index %s: %w", x.path, err), x.Close())
	}
	return x, nil
}

func (x *Index) openOrMake(ctx context.Context, tell func()) error {
	ok, err := false, ours(x.path) // again: who had the lock may have mended it
	if err == nil {
		err = x.open(ctx)
	}
	if err == nil {
		ok, err = x.fits(ctx)
	}
	bad := damaged(err) || errors.Is(err, ErrForeign)
	if err == nil && ok || err != nil && !bad {
		return err
	}
	if bad && tell != nil {
		tell()
	}
	return x.anew(ctx)
}

// Anew throws away what the index holds; the next Update reads the whole log.
func (x *Index) Anew(ctx context.Context) error {
	unlock, err := x.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := x.anew(ctx); err != nil {
		return fmt.Errorf("making the index anew: %w", err)
	}
	return nil
}

// private refuses a directory that belongs to somebody else, as the cache of who
// called sudo, or that others can write to.
func private(dir string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("%w: %s is of uid %d, mode %04o", ErrShared, dir, st.Uid, st.Mode&0o7777)
	}
	return nil
}

// ours makes an empty file that only its owner reads, or checks that what is
// there is an index.
func ours(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("opening the index: %w", err)
	}
	defer f.Close()
	var head [72]byte
	n, err := io.ReadFull(f, head[:])
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return nil
	case err != nil, string(head[:len(magic)]) != magic, binary.BigEndian.Uint32(head[68:]) != application:
		return fmt.Errorf("%w: %s", ErrForeign, path)
	}
	return nil
}

func (x *Index) open(ctx context.Context) error {
	db, err := sql.Open("sqlite", dsn(x.path, "rw", "busy_timeout(60000)", "synchronous(NORMAL)", "cache_size(-65536)"))
	if err != nil {
		return err
	}
	x.db = db
	return x.db.PingContext(ctx)
}

func dsn(path, mode string, pragmas ...string) string {
	q := url.Values{"mode": {mode}, "_pragma": pragmas, "_txlock": {"immediate"}}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

// Damaged reports whether an answer out of an index, or an Update, failed because
// its file is no whole database any more, or was taken away. Damage that is not
// where Open looks is seen only then: see [Index.Anew].
func Damaged(err error) bool {
	bad, ok := errors.AsType[*sqlite.Error](err)
	return ok && (damaged(err) || bad.Code() == codeMoved || bad.Code() == codeShort || bad.Code() == codeNoFile)
}

// Full reports whether there was no room for the index.
func Full(err error) bool {
	bad, ok := errors.AsType[*sqlite.Error](err)
	return ok && bad.Code()&0xff == codeFull || durable.NoRoom(err)
}

// damaged reports whether an error says that the file is no whole database.
func damaged(err error) bool {
	bad, ok := errors.AsType[*sqlite.Error](err)
	return ok && (bad.Code()&0xff == codeCorrupt || bad.Code()&0xff == codeNotADB)
}

// SQLite's result codes.
const (
	codeCorrupt = 11
	codeFull    = 13
	codeNotADB  = 26
	codeShort   = 522  // SQLITE_IOERR_SHORT_READ
	codeMoved   = 1032 // SQLITE_READONLY_DBMOVED
	codeNoFile  = 5898 // SQLITE_IOERR_DELETE_NOENT
)

// fits reports whether the file is of this log and version.
func (x *Index) fits(ctx context.Context) (bool, error) {
	var v int
	if err := x.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v); err != nil || v != version {
		return false, err
	}
	var dir string
	if err := x.db.QueryRowContext(ctx, "SELECT dir FROM log_dir").Scan(&dir); err != nil {
		return false, err
	}
	return dir == x.dir, nil
}

// anew throws the index away and begins an empty one.
func (x *Index) anew(ctx context.Context) error {
	if err := x.Close(); err != nil {
		return err
	}
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if err := os.Remove(x.path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := ours(x.path); err != nil {
		return err
	}
	if err := x.open(ctx); err != nil {
		return err
	}
	tx, err := x.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing to undo once it is committed
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("making the tables: %w", err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO log_dir VALUES (?)", x.dir); err != nil {
		return err
	}
	return tx.Commit()
}

// Close closes the file.
func (x *Index) Close() error {
	if x.db == nil {
		return nil
	}
	return x.db.Close()
}

// Path returns the file's.
func (x *Index) Path() string { return x.path }

// Holes returns what the last Update knows of records that are missing, or not in their place.
func (x *Index) Holes() []query.Hole { return x.holes }

// DB returns the database, to ask it. Nobody but Update changes it.
func (x *Index) DB() *sql.DB { return x.db }

// schema makes the tables. Nothing in them may be NULL: what a record does not
// say is "" or 0, as in the log. Most of what a record says it says with others:
// shapes holds it once, which makes the file a fraction of the log and quick to
// write. Those who ask see records and hours.
var schema = strings.NewReplacer(
	"$shared", those(true, declared), "$own", those(false, declared), "$columns", names(""),
).Replace(`
PRAGMA application_id = 1397768536;
PRAGMA user_version = 8;
CREATE TABLE log_dir (dir TEXT NOT NULL);
CREATE TABLE segments (
	first INTEGER PRIMARY KEY, -- number of the first record
	bytes INTEGER NOT NULL,    -- that were read so far
	lines INTEGER NOT NULL,
	bad   INTEGER NOT NULL,    -- lines that are no record
	odd   INTEGER NOT NULL,    -- records that a row does not tell all of
	hash  BLOB NOT NULL,       -- of them: a state of SHA-256
	rest  TEXT NOT NULL,       -- why what follows cannot be read, '' if it can
	later INTEGER NOT NULL,    -- number of the first record of a later schema
	schema INTEGER NOT NULL,   -- which that is, 0 if there is none
	numbers TEXT NOT NULL,     -- how those of the records go on: query.Numbers in JSON
	file  TEXT NOT NULL        -- name, device and inode, size and times before they were read
);
CREATE TABLE shapes (
	shape INTEGER PRIMARY KEY,
	sum   BLOB NOT NULL UNIQUE, -- of SHA-256 of all that follows
	$shared
);
CREATE INDEX shapes_run ON shapes (run);
CREATE INDEX shapes_host ON shapes (host);
CREATE TABLE entries (shape INTEGER NOT NULL, $own);
-- Each has its shape. A LEFT JOIN keeps the planner from going through all shapes, and to their
-- records from there, where no shape is asked for.
CREATE VIEW records AS SELECT $columns FROM entries LEFT JOIN shapes USING (shape);
-- The records of whole hours, counted: hour is hours since 1970.
CREATE TABLE counts (
	hour INTEGER NOT NULL, shape INTEGER NOT NULL,
	n INTEGER NOT NULL, sent INTEGER NOT NULL, received INTEGER NOT NULL,
	first INTEGER NOT NULL, last INTEGER NOT NULL, -- times
	seq INTEGER NOT NULL,                          -- of the first
	PRIMARY KEY (hour, shape)
) WITHOUT ROWID;
CREATE VIEW hours AS
	SELECT hour, kind, run, host, method, rule, credential, verdict, reason, n, sent, received, first, last, seq
	FROM counts JOIN shapes USING (shape);
-- What the planner takes for granted, in whatever log: how many rows there are, and how many of them are
-- alike in the columns of an index. Without it the order of the records would count for more than what is looked for.
ANALYZE log_dir;
INSERT INTO sqlite_stat1 VALUES
	('entries', 'entries_time', '10000000 1'), ('entries', 'entries_id', '10000000 1'), ('entries', 'entries_ref', '10000000 2'),
	('entries', 'entries_shape', '10000000 30 1'), ('entries', 'entries_hash', '3000000 2'), ('entries', 'entries_values', '3000000 2'),
	('shapes', 'shapes_run', '300000 60'), ('shapes', 'shapes_host', '300000 60'), ('counts', 'counts', '400000 100 1');
-- log is records with a time that people read.
CREATE VIEW log AS
	SELECT strftime('%Y-%m-%dT%H:%M:%fZ', time / 1000000000.0, 'unixepoch') AS at, * FROM records;
`)

// HashedPath is the condition that a path was kept as keyed hashes, as
// gate.HashPath spells them; records for which it holds are found by it.
const HashedPath = `path >= '/hmac:' AND path < '/hmac;'`

// lookups are made when the records are in: sorting is quicker than inserting
// one by one into many places. Those that are there already follow what is added.
var lookups = []string{
	"entries_time ON entries (time)",
	"entries_id ON entries (id)",
	"entries_ref ON entries (ref)",
	"entries_shape ON entries (shape, time)",
	"entries_long ON entries (time) WHERE length(path) > 60",
	"entries_hash ON entries (query_hash) WHERE query_hash <> ''",
	"entries_values ON entries (query_values) WHERE query_values <> ''",
	"entries_hashed ON entries (seq) WHERE " + HashedPath,
	"entries_cut ON entries (seq) WHERE cut <> ''",
	"shapes_policy ON shapes (policy) WHERE kind = 'policy.load'",
}
