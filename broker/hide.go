package broker

import (
	"strings"

	"sallyport/broker/scrub"
)

// Hider returns a function that takes a cell's placeholders, and the secrets
// that went out for it, out of a text, in all their spellings: stars stand in
// their place. It goes on to work when the cell is detached. Of a cell that is
// not attached nothing is known: then nothing of a text is returned.
func (c *Client) Hider(cell string) func(text string) string {
	cc := c.cell(cell)
	if cc == nil {
		return func(string) string { return "" }
	}
	return func(text string) string { return cc.hiding().Text(text) }
}

// hiding returns what takes out of the cell's messages what must not be kept of them.
func (cc *clientCell) hiding() *scrub.Scrubber {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if cc.hider == nil {
		cc.hider = scrub.New(cc.hiddenLocked()...)
	}
	return cc.hider
}

// hiddenLocked returns what must not be kept of the cell's messages.
func (cc *clientCell) hiddenLocked() []scrub.Secret {
	var out []scrub.Secret
	add := func(value string) {
		if value != "" {
			out = append(out, scrub.Secret{Value: value, Instead: strings.Repeat("*", len(value))})
		}
	}
	if cc.finder != nil {
		for _, g := range cc.finder.grants {
			add(g.Placeholder)
			for _, v := range g.More {
				add(v.Placeholder)
				add(v.ID)
			}
		}
	}
	for _, values := range cc.exposed {
		for _, v := range values {
			add(v.Value)
		}
	}
	return out
}
