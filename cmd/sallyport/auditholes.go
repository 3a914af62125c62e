package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/audit/query"
	"sallyport/rules/plural"
)

// notices are what shows, while a log is read, that it is not whole: an answer out of it
// may lack something, and nothing found may be what was taken away.
type notices struct {
	holes []query.Hole
	lines int64 // that are no records, and are told nowhere else
}

// take is what [query.RecordsFrom] calls.
func (n *notices) take(err error) {
	if h, ok := errors.AsType[*query.HoleError](err); ok {
		n.holes = append(n.holes, h.Hole)
	} else {
		n.lines++
	}
}

// tell says it in one line, with how to look closer at the log in dir.
func (n *notices) tell(c *cobra.Command, dir string) {
	var parts []string
	if len(n.holes) > 0 {
		parts = append(parts, query.Printable(n.holes[0].String()))
	}
	if more := len(n.holes) - 1; more > 0 {
		parts = append(parts, fmt.Sprintf("%s of the log %s not whole either", plural.Count(more, "other place"), plural.Of(more, "is", "are")))
	}
	if n.lines > 0 {
		parts = append(parts, fmt.Sprintf("%s of the log %s", plural.Count(n.lines, "line"), plural.Of(n.lines, "is no record", "are no records")))
	}
	if len(parts) == 0 {
		return
	}
	next := "sallyport audit verify"
	if f := c.Flags().Lookup("dir"); f == nil { // the log is an argument of the command
		next += " --dir " + strings.Join(quoteArgs([]string{dir}), "")
	}
	fmt.Fprintf(c.ErrOrStderr(), "sallyport: %s: %s\n", strings.Join(parts, "; "), hintedAt(c, next))
}

// withHoles is v for printJSON: an object has holes as one more member, where there are
// any. Lists and lines keep their shape.
func withHoles(v any, holes []query.Hole) (any, error) {
	if len(holes) == 0 {
		return v, nil
	}
	object, err := json.Marshal(v)
	if err != nil || !bytes.HasPrefix(object, []byte(`{"`)) {
		return v, err
	}
	more, err := json.Marshal(holes)
	return json.RawMessage(fmt.Sprintf(`%s,"holes":%s}`, bytes.TrimSuffix(object, []byte("}")), more)), err
}
