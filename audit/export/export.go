// Package export converts records of a log to what other programs read.
//
// An export is a view: it leaves out what its format has no place for, and
// proves nothing. A [Bundle] is what can be proved. The package trusts no text
// of the log: each format quotes it in its own way, and a spreadsheet gets no
// cell that it could take for a formula.
package export

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"sallyport/audit"
	"sallyport/audit/query"
)

// Config is what every format is told.
type Config struct {
	Version string // of the program, where a format names its producer
	Host    string // the machine that the log is of, where a format asks for one; "" leaves it out
	// LeftOut counts, if it is not nil, the records by kind that the format has no
	// place for, and that are not in the export.
	LeftOut map[audit.Kind]int64
}

// errNoPlace says that a format has no place for a record.
var errNoPlace = errors.New("the format has no place for it")

// writer takes the records of one export; errNoPlace leaves one out.
type writer interface {
	record(*audit.Record) error
	close() error // writes what follows the last record
}

var formats = map[string]func(io.Writer, Config) writer{
	"jsonl":   newJSONL,
	"csv":     newCSV,
	"har":     newHAR,
	"ocsf":    newOCSF,
	"ecs":     newECS,
	"cef":     newCEF,
	"otlp":    newOTLP,
	"parquet": newParquet,
}

// Formats returns their names, sorted.
func Formats() []string { return slices.Sorted(maps.Keys(formats)) }

// Binary reports whether a format is none of lines of text.
func Binary(format string) bool { return format == "parquet" }

// ErrFormat is wrapped by Write's error if there is no such format.
var ErrFormat = errors.New("no such format")

// Write writes recs to w and returns how many it read. It writes as it reads.
// Lines that are no records are left out, and told in the error at the end.
func Write(w io.Writer, format string, recs iter.Seq2[audit.Record, error], cfg Config) (n int64, err error) {
	open, ok := formats[format]
	if !ok {
		return 0, fmt.Errorf("%w: %q", ErrFormat, format)
	}
	out := bufio.NewWriterSize(w, 64<<10)
	f := open(out, cfg)
	var bad []error
	for r, err := range recs {
		if _, ok := errors.AsType[*query.LineError](err); ok {
			if len(bad) < 10 {
				bad = append(bad, err)
			}
			continue
		}
		if err == nil {
			err = f.record(&r)
		}
		if errors.Is(err, errNoPlace) {
			if cfg.LeftOut != nil {
				cfg.LeftOut[r.Kind]++
			}
			err = nil
		}
		if err != nil {
			return n, fmt.Errorf("exporting after %d records: %w", n, err)
		}
		n++
	}
	err = f.close()
	if err == nil { // else the same again
		err = out.Flush()
	}
	if err != nil {
		return n, fmt.Errorf("exporting: %w", err)
	}
	return n, errors.Join(bad...)
}

// jsonl is the log's own form.
type jsonl struct{ w io.Writer }

func newJSONL(w io.Writer, _ Config) writer { return jsonl{w} }

func (j jsonl) record(r *audit.Record) error { return query.Object(j.w, r) }
func (j jsonl) close() error                 { return nil }

// denied and the others are what a record comes to, for formats that ask.
func denied(r *audit.Record) bool { return query.AboutDenial(r) }

// isRequest reports whether r is about one request or query.
func isRequest(r *audit.Record) bool {
	switch r.Kind {
	case audit.Admit, audit.Refuse, audit.Done, audit.DNS, audit.Credential:
		return true
	default:
		return false
	}
}
