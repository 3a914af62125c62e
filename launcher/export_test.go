package launcher

import (
	"time"

	"sallyport/control"
)

// Clock is clock, for tests.
type Clock struct{ c clock }

// NewClock returns the clock of a run whose start was heard at started, sent at
// a time on the guest's clock.
func NewClock(started time.Time, at time.Duration) *Clock { return &Clock{clock{started, at}} }

// Now is clock.now.
func (c *Clock) Now(read time.Time) time.Time { return c.c.now(read) }

// Sent is clock.sent.
func (c *Clock) Sent(at time.Duration, read time.Time) time.Time { return c.c.sent(at, read) }

// RunEnvironment is environment, for tests.
var RunEnvironment = environment

// WriteDocuments writes the documents of grants below etc.
func WriteDocuments(etc string, grants []control.Grant) error {
	return writeDocuments(etc, documents(grants))
}

// Because is because, for tests.
var Because = because

// RemoveCgroups is removeCgroups, for tests.
var RemoveCgroups = removeCgroups
