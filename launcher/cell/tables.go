package cell

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// lockWait bounds the wait for the lock that all users of iptables share, in seconds.
const lockWait = 20

// openTables finds the programs. Their backend (legacy or nf_tables) is the
// machine's choice; both are tested.
func openTables() (ip4, ip6 *iptables.IPTables, err error) {
	ip4, err = iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(lockWait))
	if err != nil {
		return nil, nil, fmt.Errorf("looking for iptables: %w (install the iptables package)", err)
	}
	if noIPv6() {
		return ip4, nil, nil
	}
	ip6, err = iptables.New(iptables.IPFamily(iptables.ProtocolIPv6), iptables.Timeout(lockWait))
	if err != nil {
		return nil, nil, fmt.Errorf("looking for ip6tables: %w (install the iptables package)", err)
	}
	return ip4, ip6, nil
}

// reference lays the wanted tables out in a namespace of their own and reads
// them back. iptables prints a rule differently from how it was written, and
// each version in its own way; what it prints here is what it must print for the
// real tables. A kernel that lacks something is found out here too, before
// anything real has been touched.
func (n *Network) reference() error {
	return insideNew(func() error {
		if err := n.closeIPv6(); err != nil {
			return err
		}
		n.nflog = n.hasNFLOG()
		if err := n.setBase(layout{}); err != nil {
			return err
		}
		if err := n.addCell(templateCell); err != nil {
			return err
		}
		var err error
		n.printed, err = n.read()
		return err
	})
}

// hasNFLOG tries the one rule that we can do without.
func (n *Network) hasNFLOG() bool {
	trial := args("-m limit --limit 10/sec -j NFLOG --nflog-group", nflogGroup, "--nflog-prefix", "trial")
	return n.ip4.Append("filter", "FORWARD", trial...) == nil && n.ip4.Delete("filter", "FORWARD", trial...) == nil
}

var counters = regexp.MustCompile(` -c (\d+) (\d+)`)

// read returns what is there, without counters.
func (n *Network) read() (layout, error) {
	got := layout{}
	for _, table := range tables {
		lines, err := n.list(table)
		if err != nil {
			return nil, err
		}
		got[table] = map[string][]string{}
		for _, line := range lines {
			line = counters.ReplaceAllString(line, "")
			name := strings.Fields(line)[1]
			got[table][name] = append(got[table][name], line)
		}
		if d := got[table][dispatchChain]; len(d) > 1 {
			slices.Sort(d[1:])
		}
	}
	return got, nil
}

// list prints a table with counters. go-iptables has no call for a whole table;
// -v in the place of the chain's name makes iptables print all of them.
func (n *Network) list(table string) ([]string, error) {
	lines, err := n.ip4.List(table, "-v")
	if err != nil {
		return nil, fmt.Errorf("reading table %s: %w", table, err)
	}
	return slices.DeleteFunc(lines, func(line string) bool {
		return !strings.HasPrefix(line, "-") // a remark about the other backend
	}), nil
}

// reconcile makes the tables what cells want, and reads them back.
func (n *Network) reconcile(cells []Cell) error {
	got, err := n.read()
	if err != nil {
		return err
	}
	want := n.wanted(cells)
	if n.checkIPv6() != nil {
		if err := n.closeIPv6(); err != nil {
			return err
		}
	}
	if len(diff(want, got)) == 0 {
		return nil
	}
	if err := n.setBase(got); err != nil {
		return err
	}
	for _, cell := range cells {
		if n.cellDiffers(cell, want, got) {
			if err := errors.Join(n.dropCell(cell.ID), n.addCell(cell)); err != nil {
				return err
			}
		}
	}
	if err := n.removeStrangers(want); err != nil {
		return err
	}
	if got, err = n.read(); err != nil {
		return err
	}
	if d := diff(want, got); len(d) > 0 {
		return fmt.Errorf("rules are not what was written: %s", strings.Join(d, "; "))
	}
	return nil
}

// setBase sets the policies, then our chains, then the hooks, where got differs.
// A chain that differs is built beside and swapped in by one replacement of the
// hook's rule: no packet sees a half of either.
func (n *Network) setBase(got layout) error {
	for _, h := range hooks {
		policy := fmt.Sprintf("-P %s %s", h.name, h.policy)
		if g := got[h.table][h.name]; len(g) > 0 && g[0] == policy {
			continue
		}
		if err := n.ip4.ChangePolicy(h.table, h.name, h.policy); err != nil {
			return writing(h.table, h.name, nil, err)
		}
	}
	for _, c := range n.cfg.baseChains() {
		have := got[c.table][c.name]
		var err error
		switch {
		case have == nil:
			err = n.fill(c)
		case c.name == dispatchChain: // its rules come and go with the cells
		case !slices.Equal(have, n.printed[c.table][c.name]):
			err = n.swap(c)
		}
		if err != nil {
			return err
		}
	}
	for _, h := range hooks {
		if err := n.setHook(h); err != nil {
			return err
		}
	}
	return nil
}

// swap builds c anew and puts it in the place of the old one.
func (n *Network) swap(c chain) error {
	spare := chain{c.table, c.name + spareSuffix, c.rules}
	if err := n.fill(spare); err != nil {
		return err
	}
	for _, h := range hooks {
		if h.table == c.table && slices.Equal(h.rule, rule{"-j", c.name}) {
			h.rule = rule{"-j", spare.name}
			if err := n.setHook(h); err != nil {
				return err
			}
		}
	}
	if err := n.dropChain(c.table, c.name); err != nil {
		return err
	}
	if err := n.ip4.RenameChain(c.table, spare.name, c.name); err != nil {
		return writing(c.table, c.name, nil, err)
	}
	return nil
}

// setHook leaves h's rule, and nothing else, in a chain of the kernel's.
func (n *Network) setHook(h hook) error {
	lines, err := n.ip4.List(h.table, h.name)
	if err != nil {
		return fmt.Errorf("reading table %s: %w", h.table, err)
	}
	rules := slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "-A") })
	keep := min(len(h.rule), 1)
	switch {
	case keep == 0:
	case len(rules) == 0:
		err = n.ip4.Append(h.table, h.name, h.rule...)
	case rules[0] != "-A "+h.name+" "+strings.Join(h.rule, " "):
		err = n.ip4.Replace(h.table, h.name, 1, h.rule...)
	}
	for i := len(rules); err == nil && i > keep; i-- {
		err = n.ip4.DeleteById(h.table, h.name, i)
	}
	if err != nil {
		return writing(h.table, h.name, h.rule, err)
	}
	return nil
}

// fill makes a chain with just these rules.
func (n *Network) fill(c chain) error {
	if err := n.ip4.ClearChain(c.table, c.name); err != nil {
		return writing(c.table, c.name, nil, err)
	}
	for _, r := range c.rules {
		if err := n.ip4.Append(c.table, c.name, r...); err != nil {
			return writing(c.table, c.name, r, err)
		}
	}
	return nil
}

// dropChain removes a chain that nothing jumps to. No such chain is no error.
func (n *Network) dropChain(table, name string) error {
	if err := n.ip4.ClearAndDeleteChain(table, name); err != nil {
		return fmt.Errorf("removing chain %s of table %s: %w", name, table, err)
	}
	return nil
}

// writing explains a refusal by iptables: it is nearly always a kernel without
// one of the matches, and the program does not name the module.
func writing(table, chain string, r rule, err error) error {
	var modules []string
	for i, arg := range r {
		if i > 0 && (r[i-1] == "-m" || r[i-1] == "-j") && !strings.HasPrefix(arg, bridgePrefix) {
			modules = append(modules, "xt_"+strings.ToLower(arg)) //nolint:forbidigo // not a host
		}
	}
	hint := "iptable_" + table
	if len(modules) > 0 {
		hint = strings.Join(modules, ", ")
	}
	return fmt.Errorf("writing table %s, chain %s, rule %q: %w (the kernel needs %s; load or build the module, or use another kernel)",
		table, chain, strings.Join(r, " "), err, hint)
}

// closeIPv6 closes what the sysctls have switched off already.
func (n *Network) closeIPv6() error {
	if n.ip6 == nil {
		return nil
	}
	if err := errors.Join(n.ip6.ClearAll(), n.ip6.DeleteAll()); err != nil {
		return fmt.Errorf("clearing IPv6 rules: %w", err)
	}
	for _, name := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		if err := n.ip6.ChangePolicy("filter", name, "DROP"); err != nil {
			return fmt.Errorf("closing IPv6 chain %s: %w (the kernel needs ip6table_filter, or no IPv6 at all)", name, err)
		}
	}
	return nil
}

// checkIPv6 says what is not closed.
func (n *Network) checkIPv6() error {
	if n.ip6 == nil {
		return nil
	}
	lines, err := n.ip6.List("filter", "-v")
	if err != nil {
		return fmt.Errorf("reading IPv6 rules: %w", err)
	}
	var errs []error
	for _, line := range lines {
		line = counters.ReplaceAllString(line, "")
		if strings.HasPrefix(line, "-") && !(strings.HasPrefix(line, "-P") && strings.HasSuffix(line, " DROP")) {
			errs = append(errs, fmt.Errorf("IPv6 filter table has %q, want nothing but policies DROP", line))
		}
	}
	return errors.Join(errs...)
}
