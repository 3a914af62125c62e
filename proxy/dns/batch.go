package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"

	"sallyport/rules"
	"sallyport/rules/gate"
)

// Queries that lie in the socket together are read with one system call,
// recorded with one write and answered with one more (ADR-0045). Each is judged
// by itself, and has a record of its own.

// maxBatch is how many datagrams a worker takes at once.
const maxBatch = 8

// batch is what one worker works on.
type batch struct {
	msgs    []ipv4.Message // as they were read, with their buffers
	n       int            // that were read
	out     [][maxUDP]byte // for the reply to each
	replies []ipv4.Message // to be sent
	sent    []ipv4.Message // their memory

	// The plain queries among them, side by side.
	at       []int // in msgs
	queries  []query
	plain    []plain
	asks     []gate.Query
	outcomes []outcome
	passes   []gate.Pass

	looks []int // which of these are to be looked up
	left  []int // which of msgs go the long way
}

func newBatch() *batch {
	b := &batch{msgs: make([]ipv4.Message, maxBatch), out: make([][maxUDP]byte, maxBatch), sent: make([]ipv4.Message, maxBatch)}
	for i := range b.msgs {
		b.msgs[i].Buffers = [][]byte{make([]byte, maxQuery)}
		b.msgs[i].OOB = make([]byte, oobSize)
		b.sent[i].Buffers = make([][]byte, 1)
	}
	return b
}

func (b *batch) raw(i int) []byte { return b.msgs[i].Buffers[0][:b.msgs[i].N] }

// client returns who asks, which is sandbox-controlled but for its address.
func (b *batch) client(i int) netip.AddrPort {
	if a, ok := b.msgs[i].Addr.(*net.UDPAddr); ok {
		at := a.AddrPort()
		return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	}
	return netip.AddrPort{} // no cell has it
}

// say has a reply sent, if there is one, from the address that was asked.
func (b *batch) say(i int, reply []byte) {
	if reply == nil {
		return
	}
	m := &b.sent[len(b.replies)]
	m.Buffers[0], m.OOB, m.Addr = reply, source(b.msgs[i].OOB[:b.msgs[i].NN]), b.msgs[i].Addr
	b.replies = b.sent[:len(b.replies)+1]
}

// handleBatch answers what was read. First go the replies that need nobody
// else; of the rest none waits for another's look-up.
func (s *Server) handleBatch(ctx context.Context, u datagrams, b *batch, t *turn) {
	t.begin()
	s.handleTogether(ctx, b)
	u.write(b.replies)
	t.end()
	b.replies = b.replies[:0]
	switch len(b.left) + len(b.looks) {
	case 0:
		return
	case 1:
		t.give()
		s.handleLeft(ctx, u, b, 0)
		return
	}
	t.give()
	var open sync.WaitGroup
	for i := range len(b.left) + len(b.looks) {
		open.Go(func() { s.handleLeft(ctx, u, b, i) })
	}
	open.Wait()
}

// handleLeft answers the i-th of those that go the long way, or of those after
// them that are looked up.
func (s *Server) handleLeft(ctx context.Context, u datagrams, b *batch, i int) {
	var at int
	var reply []byte
	if i < len(b.left) {
		at = b.left[i]
		reply = s.Handle(ctx, b.raw(at), b.client(at), true, b.out[at][:])
	} else {
		k := b.looks[i-len(b.left)]
		at = b.at[k]
		q := &b.queries[k]
		defer s.survive(ctx, q, &reply)
		reply = s.replyPlain(q, b.plain[k], s.lookUp(ctx, q, b.passes[k]), b.raw(at), b.out[at][:])
	}
	if reply != nil {
		m := &b.msgs[at]
		u.write([]ipv4.Message{{Buffers: [][]byte{reply}, OOB: source(m.OOB[:m.NN]), Addr: m.Addr}})
	}
}

// handleTogether answers the plain queries of known cells, and leaves the rest.
// If it panics before anything is recorded all of them are left, to be handled
// one by one, so that it costs only the query that causes it.
func (s *Server) handleTogether(ctx context.Context, b *batch) {
	recorded := false
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		s.cfg.Log.ErrorContext(ctx, "dns: panic", "panic", fmt.Sprint(v))
		b.replies, b.looks = b.replies[:0], b.looks[:0]
		if recorded {
			s.giveUp(ctx, b)
			return
		}
		b.left = b.left[:0]
		for i := range b.n {
			b.left = append(b.left, i)
		}
	}()
	s.gather(ctx, b)
	if len(b.at) == 0 {
		return
	}
	err := s.cfg.Gate.AnswerAll(ctx, b.asks, func(i int, d rules.Decision) string {
		b.outcomes[i] = s.outcomeOf(b.queries[i].cell, b.plain[i].name, b.plain[i].qtype, d)
		return b.outcomes[i].word()
	}, func(i int, p gate.Pass) { b.passes[i] = p })
	recorded = true
	for i := range b.at {
		s.replyTo(ctx, b, i, err)
	}
}

// giveUp answers nothing of what is recorded already, and records that.
func (s *Server) giveUp(ctx context.Context, b *batch) {
	for i := range b.queries {
		if p := b.passes[i]; p.Valid() {
			_ = p.Done(ctx, gate.Outcome{Answer: failure.String(), Err: errInternal})
			continue
		}
		s.refuse(ctx, &b.queries[i], silence, rules.BadRequest, errInternal)
	}
}

// gather sorts what was read.
func (s *Server) gather(ctx context.Context, b *batch) {
	b.at, b.queries, b.plain, b.asks = b.at[:0], b.queries[:0], b.plain[:0], b.asks[:0]
	b.outcomes, b.passes, b.looks, b.left = b.outcomes[:0], b.passes[:0], b.looks[:0], b.left[:0]
	for i := range b.n {
		client := b.client(i)
		cell, known := s.cfg.CellOf(client.Addr())
		p, ok := readPlain(b.raw(i))
		if !known || !ok || p.qtype == dns.TypeA && !s.cfg.Names.Room(cell, p.name) {
			b.left = append(b.left, i)
			continue
		}
		q := query{cell: cell, client: client, udp: true}
		if !s.paced(ctx, &q) {
			continue
		}
		b.at, b.queries, b.plain = append(b.at, i), append(b.queries, q), append(b.plain, p)
		b.asks = append(b.asks, gate.Query{Origin: q.origin(""), Request: s.ask(cell, p.name, p.qtype), QType: typeName(p.qtype)})
		b.outcomes, b.passes = append(b.outcomes, outcome{}), append(b.passes, gate.Pass{})
	}
}

// replyTo writes the reply to one of the queries, which err keeps from an answer.
func (s *Server) replyTo(ctx context.Context, b *batch, i int, err error) {
	q, o, at := &b.queries[i], b.outcomes[i], b.at[i]
	if err == nil {
		err = o.failed
	}
	switch {
	case err != nil:
		s.cfg.Log.WarnContext(ctx, "dns: query not answered", "cell", q.cell, "err", err)
		o = outcome{kind: failure}
	case o.kind == lookup:
		b.looks = append(b.looks, i)
		return
	}
	b.say(at, s.replyPlain(q, b.plain[i], o, b.raw(at), b.out[at][:]))
}
