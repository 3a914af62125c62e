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

// FreshFor is how long an idle connection is taken to be open.
const FreshFor = freshFor

// IdlePerPool bounds the idle connections of one pool.
const IdlePerPool = idlePerPool
