package index

import (
	"context"

	"sallyport/audit"
	"sallyport/audit/query"
)

// Found returns what the index has for f, however many match, and from which record on the
// files are to be read.
func Found(ctx context.Context, cfg Config, f query.Filter) (recs []audit.Record, next uint64) {
	next, _ = FoundUntil(ctx, cfg, f, func(r audit.Record) bool {
		recs = append(recs, r)
		return true
	})
	return recs, next
}

// FoundUntil is Found record by record.
func FoundUntil(ctx context.Context, cfg Config, f query.Filter, use func(audit.Record) bool) (next uint64, goOn bool) {
	return found(ctx, cfg, f, 1, func(r audit.Record, _ error) bool { return use(r) })
}
