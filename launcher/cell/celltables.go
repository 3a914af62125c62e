package cell

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// addCell writes a cell's chains and then the jumps to them: until the jump, its
// packets meet the DROP at the end of the chain that would jump. There must be
// none of either before.
func (n *Network) addCell(cell Cell) error {
	for _, c := range n.cfg.cellChains(cell, n.nflog) {
		if err := n.fill(c); err != nil {
			return err
		}
		if err := n.ip4.Append(c.table, dispatchChain, dispatch(cell.ID)...); err != nil {
			return writing(c.table, dispatchChain, dispatch(cell.ID), err)
		}
	}
	return nil
}

// dropCell removes what addCell wrote, or any part of it.
func (n *Network) dropCell(id string) error {
	var errs []error
	for _, table := range []string{"raw", "filter"} {
		errs = append(errs, n.undispatch(table, id), n.dropChain(table, chainName(id)))
	}
	return errors.Join(errs...)
}

// undispatch removes every rule of the dispatch chain that has to do with a cell.
func (n *Network) undispatch(table, id string) error {
	ok, err := n.ip4.ChainExists(table, dispatchChain)
	if err != nil || !ok {
		return err
	}
	lines, err := n.ip4.List(table, dispatchChain)
	if err != nil {
		return fmt.Errorf("reading table %s: %w", table, err)
	}
	rules := slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "-A") })
	for i, line := range slices.Backward(rules) { // from the end, so that positions stay true
		if !slices.Contains(strings.Fields(line), chainName(id)) {
			continue
		}
		if err := n.ip4.DeleteById(table, dispatchChain, i+1); err != nil {
			return fmt.Errorf("removing rule %q of table %s: %w", line, table, err)
		}
	}
	return nil
}

// cellDiffers says whether a cell's chains or the jumps to them are not as wanted.
func (n *Network) cellDiffers(cell Cell, want, got layout) bool {
	for _, table := range []string{"raw", "filter"} {
		name := chainName(cell.ID)
		if !slices.Equal(got[table][name], want[table][name]) ||
			!slices.Equal(dispatches(got[table], name), dispatches(want[table], name)) {
			return true
		}
	}
	return false
}

// dispatches are the rules of the dispatch chain that have to do with a cell.
func dispatches(chains map[string][]string, name string) []string {
	var out []string
	for _, line := range chains[dispatchChain] {
		if slices.Contains(strings.Fields(line), name) {
			out = append(out, line)
		}
	}
	return out
}

// removeStrangers removes chains and rules that are not wanted: rules in the
// kernel's chains that we leave empty, jumps for cells that are gone, other
// people's chains. The namespace is ours alone.
func (n *Network) removeStrangers(want layout) error {
	got, err := n.read()
	if err != nil {
		return err
	}
	var errs []error
	for _, table := range tables {
		for _, line := range got[table][dispatchChain] {
			if !slices.Contains(want[table][dispatchChain], line) {
				errs = append(errs, n.ip4.Delete(table, dispatchChain, strings.Fields(line)[2:]...))
			}
		}
		var strange []string
		for name, lines := range got[table] {
			switch w, ok := want[table][name]; {
			case !ok:
				strange = append(strange, name)
			case len(w) == 1 && len(lines) > 1 && name != dispatchChain:
				errs = append(errs, n.ip4.ClearChain(table, name))
			case w[0] != lines[0]:
				errs = append(errs, n.ip4.ChangePolicy(table, name, strings.Fields(w[0])[2]))
			}
		}
		// Emptied first, since they may jump to each other.
		for _, name := range strange {
			errs = append(errs, n.ip4.ClearChain(table, name))
		}
		for _, name := range strange {
			errs = append(errs, n.dropChain(table, name))
		}
	}
	return errors.Join(errs...)
}

// tableCells lists the ids for which a table has a chain or a jump.
func tableCells(got layout) []string {
	var ids []string
	for _, chains := range got {
		for name, lines := range chains {
			words := []string{name}
			if name == dispatchChain {
				words = strings.Fields(strings.Join(lines, " "))
			}
			for _, w := range words {
				if id, ok := strings.CutPrefix(w, bridgePrefix); ok && idPattern.MatchString(id) {
					ids = append(ids, id)
				}
			}
		}
	}
	return ids
}

// readCounters sums up what a cell's chains dropped or refused.
func (n *Network) readCounters(id string) (Bypass, error) {
	var b Bypass
	for _, table := range []string{"raw", "filter"} {
		lines, err := n.ip4.ListWithCounters(table, chainName(id))
		if err != nil {
			return Bypass{}, fmt.Errorf("reading counters of cell %s: %w", id, err)
		}
		for _, line := range lines {
			m := counters.FindStringSubmatch(line)
			if m == nil || !strings.HasSuffix(line, "-j DROP") && !strings.Contains(line, "-j REJECT") {
				continue
			}
			packets, err := strconv.ParseUint(m[1], 10, 64)
			if err != nil {
				return Bypass{}, fmt.Errorf("reading counters of cell %s: %w", id, err)
			}
			*b.counter(line) += packets
		}
	}
	return b, nil
}

// counter is the one that a rule of cellChains counts for.
func (b *Bypass) counter(line string) *uint64 {
	switch {
	case strings.Contains(line, "limit-above"):
		return &b.Limited
	case strings.Contains(line, "-p tcp "):
		return &b.TCP
	case strings.Contains(line, "-p udp "):
		return &b.UDP
	case strings.Contains(line, "-p icmp "):
		return &b.ICMP
	default:
		return &b.Other
	}
}
