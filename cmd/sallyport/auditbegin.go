package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit/query"
	"sallyport/audit/segment"
)

// begin is where a log begins whose first records are gone: retention removes them, and
// a copy may lack them. Nothing found there is no answer about what was.
type begin struct {
	seq  int64 // 0: none are gone
	time time.Time
}

func beginOf(c *cobra.Command, dir string) (b begin) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return b // whoever reads it tells
	}
	least := int64(-1)
	for _, e := range entries {
		if n, _, ok := segment.Parse(e.Name()); ok && (least < 0 || n < least) {
			least = n
		}
	}
	if least <= 0 {
		return b
	}
	for r, err := range query.RecordsUntil(c.Context(), dir, query.Filter{}) {
		if err == nil {
			return begin{least, r.Time}
		}
	}
	return b
}

func (b begin) String() string {
	return fmt.Sprintf("the log begins with record %d, of %s: what was before is not in it any more", b.seq, b.time.UTC().Format(time.DateTime))
}

// tellBegin says that an answer about a time from since on is not about all of it.
func tellBegin(c *cobra.Command, dir string, since time.Time) {
	if since.IsZero() {
		return // nobody asked for so much
	}
	if b := beginOf(c, dir); b.seq > 0 && since.Before(b.time) {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: %v\n", b)
	}
}
