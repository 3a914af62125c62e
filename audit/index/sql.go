package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"

	"modernc.org/sqlite"
)

// limitAttached is SQLite's SQLITE_LIMIT_ATTACHED.
const limitAttached = 7

// SQL runs one question of the asker's own and returns its columns, then its
// rows. It can read the index and no other file, and can change nothing.
func (x *Index) SQL(ctx context.Context, question string) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		if err := x.ask(ctx, question, func(row []any) bool { return yield(row, nil) }); err != nil {
			yield(nil, fmt.Errorf("asking the index: %w", err))
		}
	}
}

func (x *Index) ask(ctx context.Context, question string, yield func([]any) bool) (err error) {
	db, err := sql.Open("sqlite", dsn(x.path, "ro", "query_only(1)", "busy_timeout(60000)", "trusted_schema(0)"))
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
