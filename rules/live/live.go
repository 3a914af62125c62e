// Package live holds the identities in force: which run has which cell, and
// under which policy.
//
// Readers see one immutable table; a change replaces it whole and tells who
// must ask again. It trusts its caller, the gateway's control side, and never
// reads a file.
package live

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"

	"sallyport/rules/gate"
)

// Cell is an attached cell: an identity and the address that proves it.
type Cell struct {
	gate.Identity
	Addr netip.Addr // the sandbox's only source address
}

// Table is safe for use by many goroutines. The zero Table is empty and ready.
type Table struct {
	cur atomic.Pointer[table]

	mu      sync.Mutex // guards replacing cur, and changed
	changed []chan<- struct{}
}

type table struct {
	byID   map[string]Cell
	byAddr map[netip.Addr]Cell
}

// Replace puts cells in force, all at once, in place of what was. Cells that
// cannot be told apart, because they share an id or an address, are left out,
// all of them, and told in the error: an address is an identity.
func (t *Table) Replace(cells []Cell) error {
	next := &table{make(map[string]Cell, len(cells)), make(map[netip.Addr]Cell, len(cells))}
	ids, addrs := map[string]int{}, map[netip.Addr]int{}
	for _, c := range cells {
		ids[c.Cell]++
		addrs[c.Addr.Unmap()]++
	}
	var errs []error
	for _, c := range cells {
		c.Addr = c.Addr.Unmap()
		switch err := c.check(); {
		case err != nil:
			errs = append(errs, err)
		case ids[c.Cell] > 1 || addrs[c.Addr] > 1:
			errs = append(errs, fmt.Errorf("cell %q at %v: another cell has its id or address", c.Cell, c.Addr))
		default:
			next.byID[c.Cell], next.byAddr[c.Addr] = c, c
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.swapLocked(next)
	return errors.Join(errs...)
}

// Attach adds a cell, or replaces the one with its id. An address that another
// cell has is an error, and nothing changes.
func (t *Table) Attach(c Cell) error {
	c.Addr = c.Addr.Unmap()
	if err := c.check(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.cloneLocked()
	if other, taken := next.byAddr[c.Addr]; taken && other.Cell != c.Cell {
		return fmt.Errorf("cell %q: cell %q has address %v", c.Cell, other.Cell, c.Addr)
	}
	if old, ok := next.byID[c.Cell]; ok {
		delete(next.byAddr, old.Addr)
	}
	next.byID[c.Cell], next.byAddr[c.Addr] = c, c
	t.swapLocked(next)
	return nil
}

func (c Cell) check() error {
	if c.Cell == "" || !c.Addr.IsValid() || c.Addr.IsUnspecified() || c.Addr.Zone() != "" {
		return fmt.Errorf("cell %q at %v: a cell has an id and an address", c.Cell, c.Addr)
	}
	return nil
}

// Detach removes a cell; ok is false if it was not attached.
func (t *Table) Detach(cell string) (ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.cloneLocked()
	old, ok := next.byID[cell]
	if !ok {
		return false
	}
	delete(next.byID, cell)
	delete(next.byAddr, old.Addr)
	t.swapLocked(next)
	return true
}

func (t *Table) cloneLocked() *table {
	cur := t.cur.Load()
	if cur == nil {
		return &table{map[string]Cell{}, map[netip.Addr]Cell{}}
	}
	return &table{maps.Clone(cur.byID), maps.Clone(cur.byAddr)}
}

func (t *Table) swapLocked(next *table) {
	t.cur.Store(next)
	for _, c := range t.changed {
		select {
		case c <- struct{}{}:
		default: // already told; it will see the newest table
		}
	}
}

// Identity returns the identity of a cell: a [gate.Config] takes it.
func (t *Table) Identity(cell string) (gate.Identity, bool) {
	cur := t.cur.Load()
	if cur == nil {
		return gate.Identity{}, false
	}
	c, ok := cur.byID[cell]
	return c.Identity, ok
}

// ByAddr returns the cell that a source address proves.
func (t *Table) ByAddr(a netip.Addr) (cell string, ok bool) {
	cur := t.cur.Load()
	if cur == nil {
		return "", false
	}
	c, ok := cur.byAddr[a.Unmap()]
	return c.Cell, ok
}

// Cells returns every attached cell, in no order.
func (t *Table) Cells() []Cell {
	cur := t.cur.Load()
	if cur == nil {
		return nil
	}
	out := make([]Cell, 0, len(cur.byID))
	for _, c := range cur.byID {
		out = append(out, c)
	}
	return out
}

// Notify has c told after every change. c should have a buffer of one: a
// change that finds it full is covered by the signal that is waiting in it.
// The returned function ends it.
func (t *Table) Notify(c chan<- struct{}) (stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = append(t.changed, c)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for i, x := range t.changed {
			if x == c {
				t.changed = append(t.changed[:i:i], t.changed[i+1:]...)
				return
			}
		}
	}
}
