package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// maxQuery bounds a query. A name, its question and every option that is
	// in use fit many times over.
	maxQuery = 4096
	// maxFaults is how many reads in a row may fail before serving ends.
	maxFaults = 100
)

// Serve answers on pc and l until ctx ends; either may be nil. It closes both,
// and returns once nothing is being answered any more. The sockets' own parent
// may hold further descriptors of them, so that no query is lost meanwhile.
//
// It does its own reading: a dns.Server would answer what it cannot read, or
// drop it, without a record.
func (s *Server) Serve(ctx context.Context, pc net.PacketConn, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() {
		if pc != nil {
			_ = pc.Close() // the workers see it
		}
		if l != nil {
			_ = l.Close()
		}
	})
	defer stop()
	if pc != nil {
		u, err := newDatagrams(pc)
		if err != nil {
			return fmt.Errorf("dns: %w", err)
		}
		all := newTurns()
		for range s.cfg.Workers {
			g.Go(func() error { return s.work(ctx, u, all.worker()) })
		}
	}
	if l != nil {
		g.Go(func() error { return s.accept(ctx, l) })
	}
	return g.Wait()
}

// work handles what has come, again and again. The recorder or a look-up may
// make a worker wait; then the others go on, and no more than Workers times
// maxBatch datagrams are in memory.
func (s *Server) work(ctx context.Context, u datagrams, t *turn) error {
	var b *batch // many workers never get a turn
	defer t.give()
	for faults := 0; ; {
		t.take()
		if b == nil {
			b = newBatch()
		}
		err := u.read(b)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("dns: reading: %w", err)
		case err != nil:
			if faults++; faults > maxFaults {
				return fmt.Errorf("dns: reading: %w", err)
			}
			continue
		}
		faults = 0
		s.handleBatch(ctx, u, b, t)
	}
}

// accept serves TCP connections (RFC 7766) and returns after the last one.
func (s *Server) accept(ctx context.Context, l net.Listener) error {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil
		case isShortage(err):
			// Descriptors are freed by connections that end, at the latest after
			// Idle: wait for a moment rather than give up.
			if !pause(ctx, 50*time.Millisecond) {
				return nil
			}
			continue
		case errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return fmt.Errorf("dns: accepting: %w", err)
		}
		cell, _ := s.cfg.CellOf(addrPort(c.RemoteAddr()).Addr().Unmap())
		if !s.conns.Take(cell) {
			_ = c.Close() // too many of them; the others still work
			continue
		}
		open.Go(func() {
			defer s.conns.Give(cell)
			s.converse(ctx, c)
		})
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort()
	}
	return netip.AddrPort{} // no cell has it
}

func isShortage(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// converse answers the queries of one connection in turn.
func (s *Server) converse(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer c.Close() // nothing is lost: every reply is written or has failed
	client := addrPort(c.RemoteAddr())
	in, out := make([]byte, maxQuery), make([]byte, maxQuery)
	// One timer for the whole query: a drip of octets does not renew it.
	idle := time.AfterFunc(s.cfg.Idle, func() { _ = c.Close() })
	defer idle.Stop()
	for idle.Reset(s.cfg.Idle) {
		n, err := readFramed(c, in)
		if err != nil {
			return
		}
		reply := s.Handle(ctx, in[:n], client, false, out)
		if reply == nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(reply)), uint16(len(reply)))
		if _, err := c.Write(append(framed, reply...)); err != nil {
			return
		}
	}
}

// readFramed reads a message with its length before it (RFC 1035 section 4.2.2).
func readFramed(c io.Reader, buf []byte) (int, error) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > len(buf) {
		return 0, fmt.Errorf("a query of %d octets: %w", n, os.ErrInvalid)
	}
	return io.ReadFull(c, buf[:n])
}
