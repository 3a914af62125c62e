package rules

import (
	"net/netip"
	"slices"
	"strings"

	"sallyport/rules/target"
)

// index finds the rules whose host matches without looking at the others, so
// that a decision costs the same under ten rules and ten thousand. Values are
// positions in Policy.rules, ascending.
type index struct {
	exact map[target.Host][]int32
	below map[target.Name][]int32 // by the parent of a wildcard
	depth int                     // most labels of any parent
	// ranges are the cidrs of rules without hosts, bits their lengths.
	ranges map[netip.Prefix][]int32
	bits4  []int
	bits6  []int
}

func newIndex(rs []Rule) index {
	x := index{
		exact:  map[target.Host][]int32{},
		below:  map[target.Name][]int32{},
		ranges: map[netip.Prefix][]int32{},
	}
	for i := range rs {
		n := int32(i)
		for _, h := range rs[i].Hosts {
			if name, ok := h.Host.Name(); ok && h.Wildcard {
				x.below[name] = appendOnce(x.below[name], n)
				x.depth = max(x.depth, labels(name))
				continue
			}
			x.exact[h.Host] = appendOnce(x.exact[h.Host], n)
		}
		if len(rs[i].Hosts) > 0 {
			continue
		}
		for _, r := range rs[i].Private {
			x.ranges[r] = appendOnce(x.ranges[r], n)
			bits := &x.bits6
			if r.Addr().Is4() {
				bits = &x.bits4
			}
			if !slices.Contains(*bits, r.Bits()) {
				*bits = append(*bits, r.Bits())
			}
		}
	}
	return x
}

func appendOnce(list []int32, n int32) []int32 {
	if len(list) > 0 && list[len(list)-1] == n {
		return list
	}
	return append(list, n)
}

func labels(n target.Name) int { return strings.Count(n.String(), ".") + 1 }

// near yields the positions of the rules whose hosts match, in no order. A
// position may come twice.
func (x *index) near(h target.Host, yield func(int32) bool) {
	for _, i := range x.exact[h] {
		if !yield(i) {
			return
		}
	}
	if a, ok := h.Addr(); ok {
		x.nearAddr(a, yield)
		return
	}
	name, _ := h.Name()
	if parent, ok := name.Parent(); ok {
		x.nearBelow(parent, yield)
	}
}

// nearBelow yields the positions of the rules whose wildcards cover every name
// below parent. What is longer than any wildcard is skipped: a name of a
// hundred labels costs what one of three does.
func (x *index) nearBelow(parent target.Name, yield func(int32) bool) {
	parent = parent.Last(x.depth)
	for ok := x.depth > 0; ok; parent, ok = parent.Parent() {
		for _, i := range x.below[parent] {
			if !yield(i) {
				return
			}
		}
	}
}

// nearAddr yields the positions of the rules whose ranges hold an address.
func (x *index) nearAddr(a netip.Addr, yield func(int32) bool) {
	bits := x.bits6
	if a.Is4() {
		bits = x.bits4
	}
	for _, b := range bits {
		r, err := a.Prefix(b)
		if err != nil {
			continue // a zone: no range holds it
		}
		for _, i := range x.ranges[r] {
			if !yield(i) {
				return
			}
		}
	}
}
