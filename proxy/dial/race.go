package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// attemptDelay is how long an attempt has before the next address is tried
// beside it: RFC 8305 section 8, Connection Attempt Delay.
const attemptDelay = 250 * time.Millisecond

// connectOne opens every TCP connection of this package. Keep-alive costs two
// system calls instead of five: the interval and the count stay the kernel's.
// DialTCP would bind the socket before it knows where to: the kernel then looks
// for a port that no other connection has, which takes half a millisecond once
// some thousands have just been closed, and there are 28,000 for all places
// together, where each place could have as many.
func connectOne(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	socket := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: -1, Count: -1}}
	c, err := socket.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%T is not a TCP connection", c), c.Close())
	}
	return tcp, nil
}

// opener opens a connection to a vetted address.
type opener func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

// openDirectly is the opener where no proxy is configured.
func openDirectly(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	c, err := connectOne(ctx, to)
	if err != nil {
		return nil, err // not a nil *net.TCPConn in an interface
	}
	return c, nil
}

type attempt struct {
	conn net.Conn
	err  error
}

// race returns the first connection that open makes to one of addrs, which are
// vetted: happy eyeballs, RFC 8305 section 5. When it returns, no attempt is
// under way any more.
func race(ctx context.Context, addrs []netip.AddrPort, open opener) (net.Conn, error) {
	if len(addrs) == 1 {
		c, err := open(ctx, addrs[0])
		if err != nil {
			return nil, connectError(addrs[0].String(), err)
		}
		return c, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt)
	next, pending := 0, 0
	start := func() {
		to := addrs[next]
		next, pending = next+1, pending+1
		go func() {
			c, err := open(ctx, to)
			if err != nil {
				err = connectError(to.String(), err)
			}
			results <- attempt{c, err}
		}()
	}
	start()
	timer := time.NewTimer(attemptDelay)
	defer timer.Stop()
	var worst error
	for pending > 0 {
		select {
		case <-timer.C:
		case r := <-results:
			pending--
			if r.err == nil {
				cancel()
				discard(results, pending)
				return r.conn, nil
			}
			worst = moreTelling(worst, r.err)
		}
		if next < len(addrs) && ctx.Err() == nil {
			start()
			timer.Reset(attemptDelay)
		}
	}
	return nil, worst
}

// discard waits for attempts that have lost.
func discard(results <-chan attempt, n int) {
	for range n {
		if r := <-results; r.conn != nil {
			_ = r.conn.Close() // it carried nothing
		}
	}
}
