package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"sallyport/audit"
)

// writeLog is a command of the scripts: auditlog DIR KEY < RECORDS makes a
// closed log in DIR of records, one JSON object a line. Times and ids are
// those of the records; a path's hash of VALUE is written as query_hash
// "hash:VALUE".
func writeLog() {
	if err := writeLogTo(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeLogTo(dir, key string) error {
	now := time.Date(2026, 1, 31, 11, 0, 0, 0, time.UTC)
	l, err := audit.Open(audit.Config{Dir: dir, KeyFile: key, Now: func() time.Time { return now }, Origin: "example.com/log", Version: "test"})
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var r audit.Record
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return fmt.Errorf("%s: %w", in.Text(), err)
		}
		if len(r.Query) > 5 && r.Query[:5] == "hash:" {
			r.Query = l.Hash(r.Query[5:])
		}
		if err := l.Append(context.Background(), &r); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return err
	}
	return l.Close()
}
