package limit

import (
	"math"
	"time"

	"sallyport/rules"
)

const slots = 60

// window counts in the slots of the last period, and the one before them.
type window struct {
	last int64 // the newest slot, by its number since the Unix epoch
	n    [slots + 1]int64
}

// measure counts one thing in every period that a limit may be of, so that another
// limit than before is compared with what there was before.
type measure [len(rules.Periods)]window

// add counts at a time; what is older than a period is past counting.
func (m *measure) add(now time.Time, n int64) {
	if n == 0 {
		return
	}
	for i, period := range rules.Periods {
		m[i].add(now, period, n)
	}
}

// of returns the window of a limit.
func (m *measure) of(r rules.Rate) *window {
	for i, period := range rules.Periods {
		if r.Period == period {
			return &m[i]
		}
	}
	panic("limit: a limit of no period") // rules.Compile takes none
}

// slot returns the number of a time's slot, and how many make a period.
func slot(now time.Time, period int64) (at, span, length int64) {
	length = max(period/slots, 1)
	return now.Unix() / length, min(max(period/length, 1), slots), length
}

// moveTo makes a slot the newest. A clock that goes back moves nothing.
func (w *window) moveTo(at int64) {
	if at-w.last > slots {
		w.n, w.last = [slots + 1]int64{}, at
	}
	for w.last < at {
		w.last++
		w.n[w.last%(slots+1)] = 0
	}
}

func (w *window) add(now time.Time, period, n int64) {
	at, span, _ := slot(now, period)
	if w.moveTo(at); at >= w.last-span {
		w.n[at%(slots+1)] += n
	}
}

// sum returns what the last period holds.
func (w *window) sum(now time.Time, period int64) (n int64) {
	at, span, _ := slot(now, period)
	w.moveTo(at)
	for i := w.last - span; i <= w.last; i++ {
		n += w.n[max(i, 0)%(slots+1)]
	}
	return n
}

// room returns how many more there may be now.
func (m *measure) room(now time.Time, r rules.Rate) int64 {
	if r.N == 0 {
		return math.MaxInt64
	}
	return max(0, r.N-m.of(r).sum(now, r.Period))
}

// wait tells after how long there is room for n more, 0 for now. What is more than
// the limit never has room: then it tells when nothing else is in its way.
func (m *measure) wait(now time.Time, r rules.Rate, n int64) time.Duration {
	if r.N == 0 {
		return 0
	}
	w := m.of(r)
	sum := w.sum(now, r.Period)
	if sum <= r.N-n {
		return 0
	}
	_, span, length := slot(now, r.Period)
	for i := w.last - span; ; i++ {
		if sum -= w.n[max(i, 0)%(slots+1)]; sum <= r.N-n || i == w.last {
			return max(time.Unix((i+span+1)*length, 0).Sub(now), 1)
		}
	}
}
