// Package answer answers what a reviewer asks of a log: what became of a
// request, what a run did, what is new, what differs, what is odd.
//
// It asks an index (audit/index) and nothing else, so that it works offline,
// from the files alone. It trusts no text of the log, and judges nothing but
// what stands there: whether the log is whole is audit/verify's question.
package answer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/index"
)

// Step is a record with the one that completes it.
type Step struct {
	audit.Record
	Done *audit.Record `json:"done,omitempty"` // of an admit
}

// ErrAmbiguous is wrapped when the beginning of an id fits several.
var ErrAmbiguous = errors.New("several begin so")

// AmbiguousError says which. It wraps [ErrAmbiguous].
type AmbiguousError struct {
	Column, Asked string
	Found         []string // two of them
}

// Error implements error.
func (e *AmbiguousError) Error() string {
	return fmt.Sprintf("%s %s: %v: %s", e.Column, e.Asked, ErrAmbiguous, strings.Join(e.Found, ", "))
}

// Unwrap returns [ErrAmbiguous].
func (e *AmbiguousError) Unwrap() error { return ErrAmbiguous }

// OtherError says that what was asked for is the id of something else. It wraps
// [index.ErrNone].
type OtherError struct {
	Asked       string
	Run, Record string // which of both it is; the other is ""
}

// Error implements error.
func (e *OtherError) Error() string {
	if e.Run != "" {
		return fmt.Sprintf("%v: %s is a run", index.ErrNone, e.Asked)
	}
	return fmt.Sprintf("no such run: %s is a record", e.Asked)
}

// Unwrap returns [index.ErrNone].
func (e *OtherError) Unwrap() error { return index.ErrNone }

// resolve returns the value of a column that is, or begins with, what was
// asked for: people copy a few digits, and ids mean the same in lower case.
func resolve(ctx context.Context, x *index.Index, column, asked string) (string, error) {
	found, err := beginning(ctx, x, column, asked)
	if upper := strings.ToUpper(asked); errors.Is(err, index.ErrNone) && upper != asked { //nolint:forbidigo // no host
		if again, err := beginning(ctx, x, column, upper); !errors.Is(err, index.ErrNone) {
			return again, err
		}
	}
	return found, err
}

func beginning(ctx context.Context, x *index.Index, column, asked string) (string, error) {
	if asked == "" {
		return "", index.ErrNone
	}
	table := "entries"
	if column == "run" {
		table = "shapes" // one row of many records
	}
	// A bound of another kind of text than a ULID still finds the whole value.
	rows, err := x.DB().QueryContext(ctx, "SELECT DISTINCT "+column+" FROM "+table+" WHERE "+column+" <> '' AND "+
		column+" >= ? AND "+column+" < ? ORDER BY "+column+" LIMIT 2", asked, asked+"\U0010ffff")
	if err != nil {
		return "", fmt.Errorf("asking the index: %w", err)
	}
	defer rows.Close() //nolint:errcheck // it was only read
	var found []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return "", fmt.Errorf("asking the index: %w", err)
		}
		found = append(found, s)
	}
	switch {
	case rows.Err() != nil:
		return "", fmt.Errorf("asking the index: %w", rows.Err())
	case len(found) == 0:
		return "", fmt.Errorf("%w: %s %s", index.ErrNone, column, asked)
	case len(found) > 1 && found[0] != asked:
		return "", &AmbiguousError{column, asked, found}
	}
	return found[0], nil
}

// find returns the record that was asked for by its id, the beginning of one, or its number.
func find(ctx context.Context, x *index.Index, asked string) (audit.Record, error) {
	if isNumber(asked) {
		if n, err := strconv.ParseInt(asked, 10, 64); err == nil {
			if r, err := x.One(ctx, "WHERE r.seq = ?", n); !errors.Is(err, index.ErrNone) {
				return r, err
			}
		}
	}
	id, err := resolve(ctx, x, "id", asked)
	if errors.Is(err, index.ErrNone) {
		if run, other := resolve(ctx, x, "run", asked); other == nil {
			err = &OtherError{Asked: asked, Run: run}
		}
	}
	if errors.Is(err, index.ErrNone) && isNumber(asked) {
		err = fmt.Errorf("%w: number %s", index.ErrNone, asked)
	}
	if err != nil {
		return audit.Record{}, err
	}
	return x.One(ctx, "WHERE r.id = ? ORDER BY r.seq", id)
}

// isNumber tells numbers from the beginnings of ids: a ULID of before the year 3000
// begins with 0.
func isNumber(s string) bool {
	if s == "" || s != "0" && s[0] == '0' {
		return false
	}
	return strings.Trim(s, "0123456789") == ""
}

// Story is one record and what belongs to it.
type Story struct {
	Step
	// Lookup is the DNS query of the same cell that named the host: the last for an
	// address, since stub resolvers ask for more beside it. Run is the
	// record that began its run, Policy the one that put its policy in force;
	// each is nil if the log has none.
	Lookup *audit.Record `json:"lookup,omitempty"`
	Run    *audit.Record `json:"run_start,omitempty"`
	Policy *audit.Record `json:"policy_load,omitempty"`
	// Approval is the decision that made the rule, where an approval is the rule.
	Approval *audit.Record `json:"approval,omitempty"`
	// Of is the record that this one is about: the request whose placeholder leaked,
	// the refusal that an approval was asked for.
	Of *audit.Record `json:"of,omitempty"`
	// Others complete or concern the same request: a credential's refusal.
	Others []audit.Record `json:"others,omitempty"`
}

// Show returns the story of the record with an id, the beginning of one, or a number;
// of a run it is an [*OtherError]. Asked for a done it tells of its admit.
func Show(ctx context.Context, x *index.Index, asked string) (*Story, error) {
	rec, err := find(ctx, x, asked)
	if err != nil {
		return nil, err
	}
	if rec.Kind == audit.Done && rec.Ref != "" {
		if admit, err := x.One(ctx, "WHERE r.id = ? ORDER BY r.seq", rec.Ref); err == nil {
			rec = admit
		} else if !errors.Is(err, index.ErrNone) {
			return nil, err
		}
	}
	s := &Story{Step: Step{Record: rec}}
	if rec.Ref != "" {
		switch of, err := x.One(ctx, "WHERE r.id = ? ORDER BY r.seq", rec.Ref); {
		case err == nil:
			s.Of = &of
		case !errors.Is(err, index.ErrNone):
			return nil, err
		}
	}
	for r, err := range x.Records(ctx, "WHERE r.ref = ? AND r.ref <> '' ORDER BY r.seq", rec.ID) {
		if err != nil {
			return nil, err
		}
		if r.Kind == audit.Done && s.Done == nil {
			s.Done = &r
		} else {
			s.Others = append(s.Others, r)
		}
	}
	return s, s.surroundings(ctx, x)
}

// A plus keeps SQLite from walking through all numbers: what is looked for is
// few, and found by the rest.
func (s *Story) surroundings(ctx context.Context, x *index.Index) error {
	maybe := func(rest string, args ...any) (*audit.Record, error) {
		r, err := x.One(ctx, rest, args...)
		if errors.Is(err, index.ErrNone) {
			return nil, nil
		}
		return &r, err
	}
	var err error
	if s.Record.Run != "" && s.Kind != audit.RunStart {
		if s.Run, err = maybe("WHERE r.run = ? AND r.run <> '' AND r.kind = 'run.start' ORDER BY +r.seq", s.Record.Run); err != nil {
			return err
		}
	}
	if s.Host != "" && s.Kind != audit.DNS && s.Record.Run != "" {
		s.Lookup, err = maybe("WHERE r.run = ? AND r.run <> '' AND r.kind = 'dns' AND r.host = ? AND r.cell = ? AND +r.seq < ? ORDER BY r.qtype <> 'A', +r.seq DESC",
			s.Record.Run, s.Host, s.Cell, int64(s.Seq))
		if err != nil {
			return err
		}
	}
	if asked, ok := strings.CutPrefix(s.Where, "access:"); ok && s.Scope == "approval" {
		s.Approval, err = maybe("WHERE r.ref = ? AND r.ref <> '' AND r.kind = 'access.decided' AND r.run = ? AND +r.seq < ? ORDER BY +r.seq DESC",
			asked, s.Record.Run, int64(s.Seq))
		if err != nil {
			return err
		}
	}
	if s.Record.Policy != "" && s.Kind != audit.PolicyLoad {
		s.Policy, err = maybe("WHERE r.kind = 'policy.load' AND r.policy = ? AND +r.seq <= ? ORDER BY +r.seq DESC", s.Record.Policy, int64(s.Seq))
	}
	return err
}

// runOf returns the id of the run that is, or begins with, what was asked for; of a
// record it is an [*OtherError].
func runOf(ctx context.Context, x *index.Index, asked string) (string, error) {
	run, err := resolve(ctx, x, "run", asked)
	if errors.Is(err, index.ErrNone) {
		if id, other := resolve(ctx, x, "id", asked); other == nil {
			err = &OtherError{Asked: asked, Record: id}
		}
	}
	return run, err
}

// Timeline returns the id of the run that begins with what was asked for, and
// all that the log tells of it, in order. An admit and its done are one step.
// What happened to the gateway meanwhile is told between, though it is no run's:
// restarts, gaps, and what became of the run's policies.
func Timeline(ctx context.Context, x *index.Index, run string) (string, iter.Seq2[Step, error], error) {
	run, err := runOf(ctx, x, run)
	if err != nil {
		return "", nil, err
	}
	first, last, err := extent(ctx, x, run)
	if err != nil {
		return "", nil, err
	}
	return run, func(yield func(Step, error) bool) {
		rest := `WHERE r.seq IN (SELECT seq FROM entries WHERE shape IN (SELECT shape FROM shapes WHERE run = ?1 AND run <> '')
			UNION ALL SELECT seq FROM entries WHERE +seq BETWEEN ?2 AND ?3 AND shape IN (SELECT shape FROM shapes WHERE ` + around + `))
			AND NOT (r.kind = 'done' AND EXISTS (SELECT 1 FROM records a WHERE a.id = r.ref AND a.kind = 'admit')) ORDER BY r.seq`
		for part, err := range parts(x.Records(ctx, rest, run, first, last), 256) {
			if err == nil {
				err = complete(ctx, x, part)
			}
			if err != nil {
				yield(Step{}, err)
				return
			}
			for _, s := range part {
				if !yield(s, nil) {
					return
				}
			}
		}
	}, nil
}

// parts returns records as steps, n at a time.
func parts(recs iter.Seq2[audit.Record, error], n int) iter.Seq2[[]Step, error] {
	return func(yield func([]Step, error) bool) {
		var part []Step
		for r, err := range recs {
			if err != nil {
				yield(nil, err)
				return
			}
			if part = append(part, Step{Record: r}); len(part) < n {
				continue
			}
			if !yield(part, nil) {
				return
			}
			part = nil
		}
		yield(part, nil)
	}
}

// complete puts to admits what became of them: to ask for each alone takes as long
// as all the rest.
func complete(ctx context.Context, x *index.Index, steps []Step) error {
	var ids []string
	for i := range steps {
		if steps[i].Kind == audit.Admit && steps[i].ID != "" {
			ids = append(ids, steps[i].ID)
		}
	}
	list, err := json.Marshal(ids)
	if err != nil || len(ids) == 0 {
		return err
	}
	done := map[string]*audit.Record{} // the first of each
	for r, err := range x.Records(ctx, "WHERE r.ref IN (SELECT value FROM json_each(?)) AND r.kind = 'done' ORDER BY +r.seq", string(list)) {
		if err != nil {
			return err
		}
		if done[r.Ref] == nil {
			done[r.Ref] = &r
		}
	}
	for i := range steps {
		if steps[i].Kind == audit.Admit {
			steps[i].Done = done[steps[i].ID]
		}
	}
	return nil
}

// around is the condition that a shape is of the gateway's own records that
// belong to every run of that time, or to the policies of the run ?1.
const around = `run = '' AND (kind IN ('log.open', 'log.close', 'gap') OR
	kind IN ('policy.load', 'policy.refuse') AND policy IN (SELECT policy FROM shapes WHERE run = ?1 AND run <> ''))`

// extent returns the first and the last record of a run. One that has not ended
// goes on to the end of the log.
func extent(ctx context.Context, x *index.Index, run string) (first, last int64, err error) {
	var ended bool
	err = x.DB().QueryRowContext(ctx, `SELECT min(seq), max(seq), max(kind = 'run.end') FROM entries JOIN shapes USING (shape)
		WHERE run = ? AND run <> ''`, run).Scan(&first, &last, &ended)
	if err != nil {
		return 0, 0, fmt.Errorf("asking the index: %w", err)
	}
	if !ended {
		last = math.MaxInt64
	}
	return first, last, nil
}

// Holding returns the records in which one of the keyed hashes stands: as the
// query or one of its values, as a path or segments of one that follow each other, as the method, or
// in what was too long to be kept. A path begins with a slash.
func Holding(ctx context.Context, x *index.Index, hashes ...string) iter.Seq2[audit.Record, error] {
	var args []any
	var numbers []string // of the hashes, as arguments
	for _, h := range hashes {
		if h != "" {
			args = append(args, h)
			numbers = append(numbers, "?"+strconv.Itoa(len(args)))
		}
	}
	if len(args) == 0 {
		return func(func(audit.Record, error) bool) {}
	}
	// holds is the condition that one of the hashes stands in a text: each text is gone through once.
	holds := func(text string) string {
		parts := make([]string, len(numbers))
		for i, n := range numbers {
			parts[i] = "instr(" + text + ", " + n + ") > 0"
		}
		return "(" + strings.Join(parts, " OR ") + ")"
	}
	one := "IN (" + strings.Join(numbers, ", ") + ")"
	return x.Records(ctx, `WHERE r.seq IN (SELECT seq FROM entries WHERE query_hash `+one+` AND query_hash <> ''
		UNION SELECT seq FROM entries WHERE query_values <> '' AND `+holds("query_values")+`
		UNION SELECT seq FROM entries WHERE `+index.HashedPath+` AND `+holds("path")+`
		UNION SELECT seq FROM entries WHERE shape IN (SELECT shape FROM shapes WHERE method `+one+`)
		UNION SELECT seq FROM records WHERE cut <> '' AND
			`+holds("host || ' ' || path || ' ' || error || ' ' || answer || ' ' || data || ' ' || method || ' ' || client")+`) ORDER BY r.seq`, args...)
}

// Span is a time from, and up to, another.
type Span struct{ From, Until time.Time }

// Unasked reports whether the log tells of no host in a time.
func Unasked(ctx context.Context, x *index.Index, s Span) (bool, error) {
	facts, args := s.facts()
	var asked bool
	if err := x.DB().QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+facts+" WHERE host <> '')", args...).Scan(&asked); err != nil {
		return false, fmt.Errorf("asking the index: %w", err)
	}
	return !asked, nil
}

// Last returns the time of the log's last record, zero if there is none.
func Last(ctx context.Context, x *index.Index) (time.Time, error) {
	r, err := x.One(ctx, "ORDER BY r.seq DESC")
	if errors.Is(err, index.ErrNone) {
		return time.Time{}, nil
	}
	return r.Time, err
}

func (s Span) facts() (string, []any) {
	return index.Facts(s.From.UnixNano(), s.Until.UnixNano())
}

// isDenied is the condition that a row of facts is a refusal; it is that of
// query.Denied.
const isDenied = `(kind = 'refuse' OR verdict = 'deny' AND kind IN ('dns', 'done', 'credential'))`

// byHabit is the condition that it is a query for what stub resolvers ask for beside an
// address: that there is none is no refusal to whoever asked.
const byHabit = `(kind = 'dns' AND reason = 'dns_type_not_allowed' AND qtype IN ('AAAA', 'HTTPS', 'SVCB', 'SRV'))`
