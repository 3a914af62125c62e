package dial

import (
	"net/netip"

	"github.com/miekg/dns"

	"sallyport/rules/target"
)

// MinTTL is how long an answer is kept at least.
const MinTTL = minTTL

// MaxTTL is how long an answer is kept at most.
const MaxTTL = maxTTL

// MaxCached bounds the names that are kept.
const MaxCached = maxCached

// PoolsPerCell bounds the sets of addresses for which connections are kept.
const PoolsPerCell = poolsPerCell

// ReadAnswer returns the addresses that a message has for a name.
func ReadAnswer(m *dns.Msg, name target.Name, qtype uint16) []netip.Addr {
	return read(m, name, qtype).addrs
}

// Idled makes what is idle be so for longer than a connection is taken to be open.
func (d *Dialer) Idled() {
	d.pools.mu.Lock()
	defer d.pools.mu.Unlock()
	for _, cell := range d.pools.byCell {
		for _, p := range cell {
			p.mu.Lock()
			for _, list := range p.idle {
				for _, w := range list {
					w.since = w.since.Add(-freshFor)
				}
			}
			p.mu.Unlock()
		}
	}
}

// IdlePerPool bounds the idle connections of one pool.
const IdlePerPool = idlePerPool
