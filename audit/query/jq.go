package query

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/itchyny/gojq"

	"sallyport/audit"
)

// JQ is a program in the language of jq. It sees one record at a time, as it
// stands in the log, and nothing else: no file, no module, no environment.
type JQ struct{ code *gojq.Code }

// ParseJQ reads a program.
func ParseJQ(text string) (*JQ, error) {
	q, err := gojq.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("jq: %w", err)
	}
	code, err := gojq.Compile(q)
	if err != nil {
		return nil, fmt.Errorf("jq: %w", err)
	}
	return &JQ{code}, nil
}

// JQError is about a program that fails on a record.
type JQError struct {
	ID  string // of the record
	Err error
}

// Error implements error.
func (e *JQError) Error() string {
	return fmt.Sprintf("jq: on record %s: %s", Printable(e.ID), Printable(e.Err.Error()))
}

// Unwrap returns the cause.
func (e *JQError) Unwrap() error { return e.Err }

// Values returns what the program makes of records, until it fails on one, with
// a [*JQError], or halts. Errors of the records are passed on.
func (j *JQ) Values(ctx context.Context, recs iter.Seq2[audit.Record, error]) iter.Seq2[any, error] {
	return func(yield func(any, error) bool) {
		for r, err := range recs {
			if err != nil {
				if !yield(nil, err) {
					return
				}
				continue
			}
			if !j.each(ctx, &r, yield) {
				return
			}
		}
	}
}

// each yields what the program makes of one record; false ends it all.
func (j *JQ) each(ctx context.Context, r *audit.Record, yield func(any, error) bool) bool {
	in, err := valueOf(r)
	if err != nil {
		return yield(nil, err)
	}
	out := j.code.RunWithContext(ctx, in)
	for {
		v, ok := out.Next()
		if !ok {
			return true
		}
		if err, failed := v.(error); failed {
			if halt, ok := errors.AsType[*gojq.HaltError](err); !ok || halt.Value() != nil {
				yield(nil, &JQError{r.ID, err})
			}
			return false
		}
		if !yield(v, nil) {
			return false
		}
	}
}

// valueOf is a record as the program sees it.
func valueOf(r *audit.Record) (any, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // a float64 would not hold every number
	var v any
	err = dec.Decode(&v)
	return v, err
}

// Records is Values for programs that select or change records: what they make
// has to be records again.
func (j *JQ) Records(ctx context.Context, recs iter.Seq2[audit.Record, error]) iter.Seq2[audit.Record, error] {
	return func(yield func(audit.Record, error) bool) {
		for v, err := range j.Values(ctx, recs) {
			var r audit.Record
			if err == nil {
				r, err = recordOf(v)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// ErrNoRecord is wrapped when a program makes something else than a record.
var ErrNoRecord = errors.New("jq: what the program makes is no record")

func recordOf(v any) (audit.Record, error) {
	var r audit.Record
	text, err := gojq.Marshal(v)
	if err == nil {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.DisallowUnknownFields()
		err = dec.Decode(&r)
	}
	if err == nil && r.Kind == "" {
		err = errors.New("it has no kind")
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", ErrNoRecord, err)
	}
	return r, nil
}
