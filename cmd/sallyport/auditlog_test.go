package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"filippo.io/age"

	"sallyport/audit"
	"sallyport/audit/capture"
	"sallyport/broker/scrub"
	"sallyport/rules/gate"
)

// program is a command of the scripts.
func program(main func(args []string) error) func() {
	return func() {
		if err := main(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// writeLogTo is auditlog DIR KEY < RECORDS, which makes a closed log in DIR of
// records, one JSON object a line. Times and ids are those of the records; a
// query's hashes of VALUE are written as query_hash "hash:VALUE", a leaked path's as
// path "hash:PATH".
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
			r.Values, _ = gate.HashValues(r.Query[5:], l.Hash)
			r.Query = l.Hash(r.Query[5:])
		}
		if path, ok := strings.CutPrefix(r.Path, "hash:"); ok {
			r.Path = gate.HashPath(path, l.Hash)
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

// growLog is auditgrow DIR KEY FILE TEXT < RECORD, which goes on writing a record
// to a log until a file holds a text: somebody follows the log, and was seen to.
func growLog(dir, key, file, text string) error {
	var r audit.Record
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return err
	}
	l, err := audit.Open(audit.Config{Dir: dir, KeyFile: key, Now: time.Now, SegmentSize: 2000})
	if err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 1200 {
		next := r
		if err := l.Append(context.Background(), &next); err != nil {
			return errors.Join(err, l.Close())
		}
		<-tick.C
		if got, err := os.ReadFile(file); err == nil && strings.Contains(string(got), text) {
			return l.Close()
		}
	}
	return errors.Join(fmt.Errorf("%s never held %q", file, text), l.Close())
}

// keepBody is auditbody DIR IDENTITY TEXT, which keeps a request in DIR for the
// age identity that it makes, and prints what the record of its outcome has as data.
func keepBody(dir, identity, text string) error {
	who, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	s, err := capture.New(capture.Config{
		Dir: dir, Recipient: who.Recipient().String(), Decode: scrub.Decode,
		Hider: func(string) func(string) string { return func(s string) string { return s } },
	})
	if err != nil {
		return err
	}
	m := s.Message("cell", "POST /v1/charges HTTP/1.1", nil)
	if _, err := m.Write([]byte(text)); err != nil {
		return err
	}
	ref := m.Finish()
	data, err := json.Marshal(keptData{Request: &ref})
	if err != nil {
		return err
	}
	fmt.Printf("%s", data)
	return os.WriteFile(identity, []byte(who.String()+"\n"), 0o600)
}
