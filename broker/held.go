package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

const (
	maxHeld     = 64      // answers of one run
	maxHeldPath = 1 << 10 // octets of a path whose answer is held
)

// question is all that the broker judges of a request for a steady credential,
// besides the cell and the run: who asks the same is told the same.
type question struct {
	credential, method string
	to                 target.Endpoint
	path               target.Path
}

func questionOf(p gate.Pass) question {
	r := p.Request()
	return question{p.Decision().Credential, r.Method, r.Endpoint, r.Path}
}

// holder holds the answers of the broker to one run's questions, each until it is
// a few milliseconds old. They are used while the line is silent that was open
// when they were asked for: then nothing has changed, and the broker lives. The
// zero holder is empty and ready.
type holder struct {
	mu      sync.Mutex // guards all below, and what is in the answers
	answers map[question]*held
}

// held is one answer. It ends by its own timer, also when another one took its
// place.
type held struct {
	line       *control.Line
	set, query []heldValue
	remove     []string
	uses       int64
	aged       bool // half of its life is over
	stale      bool // who wants it next asks anew, for the others too, who do not wait
	timer      *time.Timer
}

type heldValue struct {
	name  string
	value secret.Value
}

// ready reports whether use has the answer to q, as of now.
func (h *holder) ready(line *control.Line, q question) bool {
	if !line.Silent() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.answers[q]
	return a != nil && a.line == line && !a.stale
}

// use returns the answer to q, if it is held and nothing has changed since: that
// costs one system call. The secret in it is known to [clientCell.expose].
func (h *holder) use(line *control.Line, q question) (ans injectAnswer, ok bool) {
	if !line.Silent() {
		return ans, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.answers[q]
	if a == nil || a.line != line {
		return ans, false
	}
	if a.stale {
		a.stale = false
		return ans, false
	}
	a.uses++
	ans.Remove = a.remove
	ans.lines = make([]fieldLine, len(a.set))
	for i, v := range a.set {
		ans.lines[i] = fieldLine{v.name, string(v.value.Reveal())}
	}
	for _, v := range a.query {
		if ans.Query == nil {
			ans.Query = make(map[string]string, len(a.query))
		}
		ans.Query[v.name] = string(v.value.Reveal())
	}
	return ans, true
}

// put holds an answer for d; told is called when it was used meanwhile.
func (h *holder) put(line *control.Line, q question, ans injectAnswer, told func(uses int64)) {
	a := &held{line: line, remove: ans.Remove}
	for name, values := range ans.Set {
		for _, v := range values {
			a.set = append(a.set, heldValue{name, secret.New([]byte(v))})
		}
	}
	for name, v := range ans.Query {
		a.query = append(a.query, heldValue{name, secret.New([]byte(v))})
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answers[q] == nil && len(h.answers) >= maxHeld {
		return
	}
	if h.answers == nil {
		h.answers = map[question]*held{}
	}
	h.answers[q] = a
	half := ans.Hold / 2
	a.timer = time.AfterFunc(half, func() {
		if uses := h.age(q, a, half); uses > 0 {
			told(uses)
		}
	})
}

// age makes an answer stale, and wipes it the next time: then it returns how often
// the answer was used.
func (h *holder) age(q question, a *held, half time.Duration) (uses int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !a.aged {
		a.aged, a.stale = true, true
		a.timer.Reset(half)
		return 0
	}
	if h.answers[q] == a {
		delete(h.answers, q)
	}
	for _, v := range slices.Concat(a.set, a.query) {
		v.value.Wipe()
	}
	return a.uses
}

// hold has an answer used again that was asked for while line was open. Of one that
// was asked for without, nobody would say that it is void: the line is opened for
// those to come.
func (c *Client) hold(ctx context.Context, cc *clientCell, line *control.Line, q question, ans injectAnswer) {
	switch {
	case ans.Hold <= 0 || len(q.path.String()) > maxHeldPath:
	case !line.Silent():
		c.openLine(ctx, line)
	default:
		after := context.WithoutCancel(ctx)
		cc.held.put(line, q, ans, func(uses int64) {
			ctx, cancel := context.WithTimeout(after, askTimeout)
			defer cancel()
			// A broker that is gone has forgotten the other uses as well.
			_ = c.control.Call(ctx, "/v1/uses", usesReport{q.credential, uses}, nil)
		})
	}
}

// openLine opens a line in place of a broken one. Without one nothing is held, and
// every request asks.
func (c *Client) openLine(ctx context.Context, broken *control.Line) {
	if !c.relay.TryLock() {
		return // somebody does
	}
	defer c.relay.Unlock()
	if c.line.Load() != broken {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	line, err := c.control.Line(ctx, lineOp)
	if err != nil {
		return // the next question tells why
	}
	c.line.Store(line)
	if broken != nil {
		_ = broken.Close()
	}
}
