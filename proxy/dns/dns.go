// Package dns answers the cells' queries, and asks nobody: a name gets a
// virtual address, one per name and cell, and [Names] remembers the pair, so
// that a flow to that address has a name whatever it speaks.
//
// The cell is proved by the query's source address alone. Every query is
// decided and recorded by the gate before it is answered; one that cannot be
// read is refused and recorded as well. Nothing that a sandbox asks is sent
// upstream, so a query carries nothing out, and an answer grants nothing: the
// flow to a virtual address is judged again. What a policy lists by name and
// type (dns.resolve) is looked up by whom Config.LookUp names, for a pass, and
// answered in records of our own. A name that holds a placeholder is refused, though
// nothing would carry it anywhere: that it was asked for is what matters.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/miekg/dns"

	"sallyport/proxy/bound"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// Gate decides and records: a *gate.Gate. Both methods are called by many
// goroutines at once.
type Gate interface {
	// Answer decides a query and records it with what answer says will be sent.
	// After an error nothing is answered. An open pass is for a look-up.
	Answer(ctx context.Context, req rules.Request, qtype string, answer func(rules.Decision) string) (gate.Pass, error)
	// AnswerAll is Answer for queries that came together; opened gets the passes
	// that are for a look-up. After an error none of them is answered.
	AnswerAll(ctx context.Context, queries []gate.Query, answer func(i int, d rules.Decision) string, opened func(i int, p gate.Pass)) error
	// Refuse records a query that no policy could be asked about.
	Refuse(ctx context.Context, req rules.Request, reason rules.Reason, cause error) error
}

// Config is what a Server needs. Gate, CellOf, Names, Now and Log are required.
type Config struct {
	Gate Gate
	// CellOf returns the cell that a source address proves.
	CellOf func(netip.Addr) (cell string, ok bool)
	Names  *Names
	// FindName tells which credentials a name holds: (*broker.Client).FindName.
	// Default: none. Called by many goroutines at once.
	FindName func(cell string, name target.Name) []rules.Carry
	// LookUp looks up the one name and type that a pass is for, and returns new
	// records of that type: (*dial.Dialer).LookUp. A refusal of what was found is
	// a *gate.DeniedError. Default: none, and such a query fails.
	LookUp func(context.Context, gate.Pass) ([]dns.RR, error)
	Now    func() time.Time
	Log    *slog.Logger

	TTL time.Duration // of every answer: 30 s

	// Bounds of one cell, and of all sources that are no cell together.
	Rate  int // queries a second: 200
	Burst int // queries at once after a pause: 400
	Conns int // TCP connections: 16
	Looks int // look-ups at the same time: 4

	Workers  int           // datagrams handled at the same time, all cells: 64
	AllConns int           // TCP connections, all cells: 512
	AllLooks int           // look-ups at the same time, all cells: 32, less than Workers
	Idle     time.Duration // a TCP connection without a whole query: 10 s
}

func (cfg Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		n   *int
		def int
	}{{&cfg.Rate, 200}, {&cfg.Burst, 400}, {&cfg.Conns, 16}, {&cfg.Workers, 64}, {&cfg.AllConns, 512}, {&cfg.Looks, 4}, {&cfg.AllLooks, 32}} {
		if *f.n < 0 {
			return cfg, errors.New("dns: a limit is negative")
		}
		if *f.n == 0 {
			*f.n = f.def
		}
	}
	if cfg.TTL == 0 {
		cfg.TTL = 30 * time.Second
	}
	if cfg.Idle == 0 {
		cfg.Idle = 10 * time.Second
	}
	if cfg.TTL < time.Second || cfg.TTL > time.Hour || cfg.Idle < 0 {
		return cfg, errors.New("dns: a time is out of bounds")
	}
	return cfg, nil
}

// Server answers queries. It is safe for use by many goroutines.
type Server struct {
	cfg   Config
	ttl   uint32
	soa   []byte // negative, in wire format
	rates rates
	conns bound.Count // open TCP connections
	looks bound.Count // look-ups under way
}

// New returns a Server. It refuses an incomplete Config.
func New(cfg Config) (*Server, error) {
	if cfg.Gate == nil || cfg.CellOf == nil || cfg.Names == nil || cfg.Now == nil || cfg.Log == nil {
		return nil, errors.New("dns: gate, cells, names, clock and log are all required")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, ttl: uint32(cfg.TTL / time.Second),
		rates: rates{Rate: bound.Rate{PerSecond: float64(cfg.Rate), Burst: float64(cfg.Burst)}},
		conns: bound.Count{Each: cfg.Conns, All: cfg.AllConns},
		looks: bound.Count{Each: cfg.Looks, All: cfg.AllLooks},
	}
	soa := make([]byte, plainSize)
	n, err := dns.PackRR(s.negative(), soa, 0, nil, false)
	if err != nil {
		return nil, fmt.Errorf("dns: writing the SOA: %w", err)
	}
	s.soa = soa[:n]
	return s, nil
}
