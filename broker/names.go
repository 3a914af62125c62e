package broker

import (
	"sallyport/broker/needle"
	"sallyport/rules"
	"sallyport/rules/target"
)

// FindName tells which placeholders the name of a host holds: of a stream that is
// carried as it is, nothing else can be looked at, and a query for a name has nothing
// else. It allocates nothing for a name that holds none.
func (c *Client) FindName(cell string, name target.Name) []rules.Carry {
	text := name.String()
	var others []rules.Carry
	if m, ok := c.strangers.Load().inHost(cell, text); ok {
		others = []rules.Carry{m.carry(rules.LeakedInHost)}
	}
	cc := c.cell(cell)
	if cc == nil || cc.finder == nil {
		return others
	}
	return append(cc.finder.findName(text), others...)
}

// findName judges the name of a host by itself.
func (f *finder) findName(name string) []rules.Carry {
	var room [usual]seen
	l := f.look(&room)
	l.host(name)
	return l.carries()
}

// host notes every placeholder in the name of a host as leaked. Whoever answers for a
// domain is told each name below it: what a label can hold is looked for in each
// spelling that labels can hold.
func (l *look) host(s string) {
	if len(s) < minRandom {
		return
	}
	buf := getScratch()
	defer scratch.Put(buf)
	*buf = needle.AppendName((*buf)[:0], s)
	for from := 0; ; {
		h, ok := needle.Next(l.f.hosts, *buf, from)
		if !ok {
			return
		}
		l.seen[l.f.owner[h.Needle.Value]] |= seenInHost
		from = h.At + 1
	}
}

// inHost returns a placeholder of another cell in the name of a host.
func (s *strangers) inHost(cell, name string) (mark, bool) {
	if s == nil || s.alone == cell || len(name) < markLen {
		return mark{}, false
	}
	buf := getScratch()
	defer scratch.Put(buf)
	*buf = needle.AppendName((*buf)[:0], name)
	return marked(s, cell, *buf)
}
