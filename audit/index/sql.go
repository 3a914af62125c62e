package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strings"

	"modernc.org/sqlite"
)

// limitAttached is SQLite's SQLITE_LIMIT_ATTACHED.
const limitAttached = 7

// Tables describes what a question can be put to, a line each.
func Tables() string {
	return "records(" + names("") + ")\n" +
		"log(at, and all of records) -- at is the time as text, time is in nanoseconds since 1970\n" +
		"hours(hour, kind, run, host, method, rule, credential, verdict, reason, n, sent, received, first, last, seq)" +
		" -- counts; hour is in hours since 1970\n"
}

// ErrStatements means that a question is several, or none.
var ErrStatements = errors.New("want one statement")

// single reports whether a question is one statement, with nothing but blanks,
// comments and semicolons after it. SQLite would run all, and tell of the last.
func single(question string) bool {
	statements, inside := 0, false
	for i := 0; i < len(question); i++ {
		rest := question[i:]
		switch c := question[i]; {
		case c == ';':
			inside = false
			continue
		case c <= ' ':
			continue
		case strings.HasPrefix(rest, "--"):
			i += skip(rest, "\n")
			continue
		case strings.HasPrefix(rest, "/*"):
			i += skip(rest[2:], "*/") + 2
			continue
		case c == '\'' || c == '"' || c == '`':
			i += skip(rest[1:], string(c)) // one that is doubled begins again at once
		case c == '[':
			i += skip(rest, "]")
		}
		if !inside {
			statements++
		}
		inside = true
	}
	return statements == 1
}

// skip returns where what ends a text is over, or the text itself.
func skip(s, end string) int {
	if i := strings.Index(s, end); i >= 0 {
		return i + len(end)
	}
	return len(s)
}

// SQL runs one question of the asker's own and returns its columns, then its
// rows. It can read the index and no other file, and can change nothing. It ends
// when ctx does, however long it would take. [ErrStatements] is wrapped if it is
// not one statement.
func (x *Index) SQL(ctx context.Context, question string) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		if !single(question) {
			yield(nil, fmt.Errorf("asking the index: %w", ErrStatements))
			return
		}
		if err := x.ask(ctx, question, func(row []any) bool { return yield(row, nil) }); err != nil {
			yield(nil, fmt.Errorf("asking the index: %w", err))
		}
	}
}

func (x *Index) ask(ctx context.Context, question string, yield func([]any) bool) (err error) {
	db, err := sql.Open("sqlite", dsn(x.path, "ro", "query_only(1)", "busy_timeout(60000)", "cache_size(-65536)", "trusted_schema(0)"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	// Without this ATTACH and VACUUM INTO would reach other files.
	if _, err := sqlite.Limit(conn, limitAttached, 0); err != nil {
		return err
	}
	rows, err := conn.QueryContext(ctx, question)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	heads, err := rows.Columns()
	if err != nil {
		return err
	}
	row, into := make([]any, len(heads)), make([]any, len(heads))
	for i, h := range heads {
		row[i] = h
		into[i] = &row[i]
	}
	if !yield(row) {
		return nil
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if !yield(row) {
			return nil
		}
	}
	return rows.Err()
}
