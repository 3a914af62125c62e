package query

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func (f *Filter) addTime(t term, now time.Time) error {
	if t.op != "=" || len(t.values) != 1 {
		return &termError{t.field + " takes = and one time", t.field + "=2h"}
	}
	at, err := ParseTime(t.values[0], now)
	if err != nil {
		return &termError{err.Error(), t.field + "=2h"}
	}
	switch {
	case t.field == "until" && (f.Until.IsZero() || at.Before(f.Until)):
		f.Until = at
	case t.field == "since" && at.After(f.Since):
		f.Since = at
	}
	return nil
}

// ErrTime is wrapped when a text is no time.
var ErrTime = errors.New("is no time: write 2h, 7d, 2027-01-31 or 2027-01-31T12:00:00Z")

// ParseTime reads a time as people write it and as this program prints it: a
// duration back from now, a date, or a date and a time of day, in UTC where no
// zone stands.
func ParseTime(s string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.UTC().AddDate(0, 0, -int(n)), nil
		}
	}
	if s == "now" {
		return now.UTC(), nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.UTC().Add(-d), nil
	}
	// RFC 3339 section 5.6 has both letters in either case, and a blank for the T.
	text := strings.NewReplacer("t", "T", " ", "T", "z", "Z").Replace(s)
	for _, form := range []string{
		time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05Z0700", "2006-01-02T15:04Z0700",
		"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateOnly,
	} {
		if at, err := time.Parse(form, text); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q %w", s, ErrTime)
}

// ofDay is a time of day after a date and a blank, as tables and other answers
// print them.
var ofDay = regexp.MustCompile(`^ [0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?([Zz]|[+-][0-9]{2}:?[0-9]{2})?(\s|$)`)

// withTimeOfDay adds to a date the time of day that follows it in text at pos:
// shells take quotes away.
func (t *term) withTimeOfDay(text string, pos int) (next int) {
	if t.field != "since" && t.field != "until" || len(t.values) != 1 {
		return pos
	}
	if _, err := time.Parse(time.DateOnly, t.values[0]); err != nil {
		return pos
	}
	of := strings.TrimRight(ofDay.FindString(text[pos:]), " \t\r\n")
	t.values[0] += of
	return pos + len(of)
}
