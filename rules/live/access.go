package live

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/rules"
	"sallyport/rules/target"
)

// AskState is what became of a request for access.
type AskState string

// The states of a request for access.
const (
	Asked    AskState = "asked"
	Approved AskState = "approved"
	Denied   AskState = "denied"
)

// Ask is a sandbox's request to be let do what it was refused. It is about one
// request of one run, and so is what comes of it.
type Ask struct {
	ID     string    `json:"id"` // of the record that it was asked
	Time   time.Time `json:"time"`
	Cell   string    `json:"cell"`
	Run    string    `json:"run"`
	Record string    `json:"request"` // the refusal
	Reason string    `json:"reason"`  // of the refusal
	Method string    `json:"method"`
	Host   string    `json:"host"`
	Port   uint16    `json:"port"`
	Path   string    `json:"path"`
	Why    string    `json:"why"` // sandbox-controlled

	State   AskState  `json:"state"`
	By      string    `json:"by,omitempty"` // who decided
	Decided time.Time `json:"decided,omitzero"`
	Note    string    `json:"note,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	Methods []string  `json:"methods,omitempty"` // that were approved
	Paths   []string  `json:"paths,omitempty"`
}

// What an approval may be, and how much may be asked.
const (
	MaxApproval = 7 * 24 * time.Hour
	maxWaiting  = 20  // of a run
	maxAsks     = 200 // of a run, decided ones too
)

// Rule returns the allow rule that an approval is: exact in host and port, and
// in method and path unless the approver named others.
func (a *Ask) Rule() (rules.Rule, error) {
	h, err := target.ParseHost(a.Host)
	if err != nil {
		return rules.Rule{}, err
	}
	r := rules.Rule{
		ID: "access-" + string(lowerID(a.ID)), Where: "access:" + a.ID, Action: rules.AllowAction, Scope: rules.ApprovalScope,
		Hosts: []rules.HostPattern{{Host: h}}, Ports: []uint16{a.Port}, Methods: slices.Clone(a.Methods),
		Expires: a.Until.Unix(), Purpose: a.Note, Owner: a.By,
	}
	if len(r.Methods) == 0 {
		r.Methods = []string{a.Method}
	}
	slices.Sort(r.Methods)
	paths := a.Paths
	if len(paths) == 0 {
		paths = []string{strings.ReplaceAll(a.Path, "*", "%2A")}
	}
	for _, s := range paths {
		p, err := rules.ParsePathPattern(s)
		if err != nil {
			return rules.Rule{}, err
		}
		r.Paths = append(r.Paths, p)
	}
	return r, nil
}

// lowerID lowers an id, which is of letters and digits.
func lowerID(id string) []byte {
	b := []byte(id)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c - 'A' + 'a'
		}
	}
	return b
}

// Access holds what sandboxes asked for and what people decided. The zero
// Access is ready. It is safe for use by many goroutines.
type Access struct {
	mu   sync.Mutex // guards asks
	asks []*Ask     // in the order in which they were asked
}

// Same returns a request of the run for the same thing that waits already.
func (b *Access) Same(a *Ask) (Ask, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.asks {
		if x.State == Asked && x.Run == a.Run && x.Method == a.Method && x.Host == a.Host && x.Port == a.Port && x.Path == a.Path {
			return *x, true
		}
	}
	return Ask{}, false
}

// Room returns an error if a run has asked for as much as it may.
func (b *Access) Room(run string) error {
	waiting, all := 0, 0
	for _, a := range b.List(run) {
		all++
		if a.State == Asked {
			waiting++
		}
	}
	if waiting >= maxWaiting || all >= maxAsks {
		return fmt.Errorf("%d requests of this run wait for an answer, and %d were answered: wait for those", waiting, all-waiting)
	}
	return nil
}

// Put keeps a request, in place of what was kept under its id.
func (b *Access) Put(a *Ask) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := *a
	for i, x := range b.asks {
		if x.ID == a.ID {
			b.asks[i] = &own
			return
		}
	}
	b.asks = append(b.asks, &own)
}

// Get returns a request.
func (b *Access) Get(id string) (Ask, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, x := range b.asks {
		if x.ID == id {
			return *x, true
		}
	}
	return Ask{}, false
}

// List returns the requests of a run, or with "" of all, in their order.
func (b *Access) List(run string) []Ask {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []Ask{}
	for _, x := range b.asks {
		if run == "" || x.Run == run {
			out = append(out, *x)
		}
	}
	return out
}

// Rules returns the approvals of a run that hold at a time.
func (b *Access) Rules(run string, now time.Time) []rules.Rule {
	var out []rules.Rule
	for _, a := range b.List(run) {
		if a.State != Approved || !now.Before(a.Until) {
			continue
		}
		if r, err := a.Rule(); err == nil { // it was looked at before it was approved
			out = append(out, r)
		}
	}
	return out
}

// Ended returns the cells of which an approval ended after one time and up to another.
func (b *Access) Ended(after, upTo time.Time) []string {
	var cells []string
	for _, a := range b.List("") {
		if a.State == Approved && a.Until.After(after) && !a.Until.After(upTo) && !slices.Contains(cells, a.Cell) {
			cells = append(cells, a.Cell)
		}
	}
	return cells
}

// Forget drops what is kept of a run that has ended.
func (b *Access) Forget(run string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks = slices.DeleteFunc(b.asks, func(a *Ask) bool { return a.Run == run })
}
