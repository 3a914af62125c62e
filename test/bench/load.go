package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// probe is one way to the origin: through a proxy, or straight to it.
type probe struct {
	proxy  string        // "" for none
	host   string        // of the origin, as the client names it
	port   string        // of the origin
	tls    *tls.Config   // nil: no TLS
	header string        // more lines of each request
	longer time.Duration // than opTimeout a connection may be used
	flow   string        // where to connect without asking; "" for CONNECT, or straight to the origin
	cold   *atomic.Int64
	rate   int // operations a second that each goroutine begins; 0: as many as it can
}

// measured is what one measurement gave.
type measured struct {
	ops, octets int64
	took        time.Duration
	latency     []time.Duration
	errs        int64
	err         error // one of them
}

func (m *measured) add(o measured) {
	m.ops += o.ops
	m.octets += o.octets
	m.latency = append(m.latency, o.latency...)
	m.errs += o.errs
	if o.err != nil {
		m.err = o.err
	}
}

// median returns the middle of what took how long.
func (m *measured) median() time.Duration {
	if len(m.latency) == 0 {
		return 0
	}
	slices.Sort(m.latency)
	return m.latency[len(m.latency)/2]
}

const opTimeout = 20 * time.Second

// conn is a connection on which the origin can be asked.
type conn struct {
	net.Conn
	br   *bufio.Reader
	host string // and port, for Host
}

func (p *probe) open() (*conn, error) {
	host := p.host
	if p.cold != nil {
		host = coldName(int(p.cold.Add(1)) % coldNames)
	}
	authority := net.JoinHostPort(host, p.port)
	to := p.proxy
	switch {
	case p.flow != "":
		to = p.flow
	case to == "":
		to = net.JoinHostPort(originAddr, p.port)
	}
	c, err := net.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	out := &conn{c, nil, authority}
	if err := out.begin(p, host); err != nil {
		_ = c.Close()
		return nil, err
	}
	return out, nil
}

func (c *conn) begin(p *probe, host string) error {
	if err := c.SetDeadline(time.Now().Add(opTimeout + p.longer)); err != nil {
		return err
	}
	raw := c.Conn
	if p.proxy != "" && p.flow == "" {
		if _, err := fmt.Fprintf(raw, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\nUser-Agent: bench\r\n\r\n", c.host); err != nil {
			return err
		}
		br := bufio.NewReaderSize(raw, 512)
		a, err := readHead(br)
		if err != nil || a.status != 200 || br.Buffered() > 0 {
			return fmt.Errorf("CONNECT: %d: %w", a.status, errors.Join(err, errors.New("refused")))
		}
	}
	if p.tls == nil {
		c.br = bufio.NewReader(raw)
		return nil
	}
	cfg := p.tls.Clone()
	cfg.ServerName = host
	t := tls.Client(raw, cfg)
	c.Conn, c.br = t, bufio.NewReader(t)
	return t.Handshake()
}

// request writes the head of a request.
func (c *conn) request(p *probe, method, path, more string) []byte {
	return []byte(method + " " + path + " HTTP/1.1\r\nHost: " + c.host + "\r\nUser-Agent: bench\r\nAccept: */*\r\n" + p.header + more + "\r\n")
}

type answerHead struct {
	status int
	length int64 // -1: not told
	close  bool
}

// readHead reads the head of an answer, and not a bit more strictly than it must.
func readHead(br *bufio.Reader) (a answerHead, err error) {
	a.length = -1
	for first := true; ; first = false {
		line, err := br.ReadSlice('\n')
		if err != nil {
			return a, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case len(line) == 0:
			return a, nil
		case first && len(line) >= 12:
			a.status, _ = strconv.Atoi(string(line[9:12]))
		case len(line) > 15 && strings.EqualFold(string(line[:15]), "Content-Length:"):
			a.length, _ = strconv.ParseInt(strings.TrimSpace(string(line[15:])), 10, 64)
		case strings.EqualFold(string(line), "Connection: close"):
			a.close = true
		}
	}
}

// ask sends one request and reads the whole answer.
func (c *conn) ask(req []byte) (n int64, more bool, err error) {
	if _, err := c.Write(req); err != nil {
		return 0, false, err
	}
	return c.answer()
}

func (c *conn) answer() (n int64, more bool, err error) {
	a, err := readHead(c.br)
	if err != nil {
		return 0, false, err
	}
	if a.status != 200 || a.length < 0 {
		return 0, false, fmt.Errorf("status %d, length %d", a.status, a.length)
	}
	d, err := c.br.Discard(int(a.length))
	return int64(d), !a.close, err
}

// during runs f on n goroutines until d has passed, and adds up what they did.
func during(d time.Duration, n int, f func(until func() bool) measured) measured {
	begin := time.Now()
	end := begin.Add(d)
	var mu sync.Mutex
	var all measured
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			m := f(func() bool { return time.Now().Before(end) })
			mu.Lock()
			all.add(m)
			mu.Unlock()
		})
	}
	wg.Wait()
	all.took = time.Since(begin)
	return all
}

// during is [during] at the probe's rate.
func (p *probe) during(d time.Duration, n int, f func(until func() bool) measured) measured {
	return during(d, n, func(until func() bool) measured { return f(paced(p.rate, until)) })
}

// paced returns an until that waits for the next turn before it answers. What comes
// late has its turn at once, and the turns that it missed are not made up for.
func paced(rate int, until func() bool) func() bool {
	if rate == 0 {
		return until
	}
	next := time.Now()
	return func() bool {
		time.Sleep(time.Until(next))
		next = time.Now().Add(time.Second / time.Duration(rate))
		return until()
	}
}

func (m *measured) fail(err error) {
	m.errs++
	m.err = err
	time.Sleep(time.Millisecond)
}

// tunnels opens a connection, asks once, and closes, over and over.
func (p *probe) tunnels(d time.Duration) measured {
	return during(d, many, func(until func() bool) (m measured) {
		for until() {
			c, err := p.open()
			if err == nil {
				_, _, err = c.ask(c.request(p, "GET", "/", "Connection: close\r\n"))
				_ = c.Close()
			}
			if err != nil {
				m.fail(err)
				continue
			}
			m.ops++
		}
		return m
	})
}

// kept calls f with one connection after the other until the time is over.
func (p *probe) kept(until func() bool, m *measured, f func(*conn) error) {
	for until() {
		c, err := p.open()
		if err == nil {
			err = f(c)
			_ = c.Close()
		}
		if err != nil {
			m.fail(err)
		}
	}
}

// requests asks over and over on kept connections.
func (p *probe) requests(d time.Duration, n int) measured {
	return p.during(d, n, func(until func() bool) (m measured) {
		p.kept(until, &m, func(c *conn) error {
			req := c.request(p, "GET", "/", "")
			for more := true; more && until(); {
				begin := time.Now()
				var err error
				if _, more, err = c.ask(req); err != nil {
					return err
				}
				m.latency = append(m.latency, time.Since(begin))
				m.ops++
			}
			return nil
		})
		return m
	})
}

const transferSize = 8 << 20

func (p *probe) downloads(d time.Duration, n int) measured {
	return p.during(d, n, func(until func() bool) (m measured) {
		p.kept(until, &m, func(c *conn) error {
			c.br = bufio.NewReaderSize(c.Conn, 64<<10)
			for more := true; more && until(); {
				k, again, err := c.ask(c.request(p, "GET", "/bytes/"+strconv.Itoa(transferSize), ""))
				if err != nil {
					return err
				}
				more = again
				m.octets += k
				m.ops++
			}
			return nil
		})
		return m
	})
}

func (p *probe) uploads(d time.Duration, n int) measured {
	return p.during(d, n, func(until func() bool) (m measured) {
		p.kept(until, &m, func(c *conn) error {
			for more := true; more && until(); {
				head := c.request(p, "POST", "/upload", "Content-Length: "+strconv.Itoa(transferSize)+"\r\n")
				if _, err := c.Write(head); err != nil {
					return err
				}
				for left := transferSize; left > 0; {
					k, err := c.Write(filler[:min(left, len(filler))])
					if err != nil {
						return err
					}
					left -= k
				}
				var err error
				if _, more, err = c.answer(); err != nil {
					return err
				}
				m.octets += transferSize
				m.ops++
			}
			return nil
		})
		return m
	})
}

// messages sends WebSocket messages of 64 octets and waits for each to come back.
func (p *probe) messages(d time.Duration, n int) measured {
	return p.during(d, n, func(until func() bool) (m measured) {
		p.kept(until, &m, func(c *conn) error {
			_, err := c.Write(c.request(p, "GET", "/ws", "Connection: Upgrade\r\nUpgrade: websocket\r\n"+
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"))
			if err != nil {
				return err
			}
			if a, err := readHead(c.br); err != nil || a.status != 101 {
				return fmt.Errorf("upgrade: %d: %w", a.status, errors.Join(err, errors.New("refused")))
			}
			frame := append([]byte{0x82, 0x80 | 64, 1, 2, 3, 4}, make([]byte, 64)...)
			back := make([]byte, 2+64)
			for until() {
				if _, err := c.Write(frame); err != nil {
					return err
				}
				if _, err := io.ReadFull(c.br, back); err != nil {
					return err
				}
				if binary.BigEndian.Uint16(back) != 0x8240 {
					return errors.New("not the frame that was sent")
				}
				m.ops++
			}
			return nil
		})
		return m
	})
}

// events listens, and notes how long each event was on its way.
func (p *probe) events(d time.Duration, n int) measured {
	return during(d, n, func(until func() bool) (m measured) {
		p.kept(until, &m, func(c *conn) error {
			if _, err := c.Write(c.request(p, "GET", "/events", "")); err != nil {
				return err
			}
			if a, err := readHead(c.br); err != nil || a.status != 200 {
				return fmt.Errorf("events: %d: %w", a.status, errors.Join(err, errors.New("refused")))
			}
			for until() {
				line, err := c.br.ReadSlice('\n')
				if err != nil {
					return err
				}
				if s, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
					sent, err := strconv.ParseInt(string(bytes.TrimSpace(s)), 10, 64)
					if err != nil {
						return err
					}
					m.latency = append(m.latency, time.Duration(time.Now().UnixNano()-sent))
					m.ops++
				}
			}
			return nil
		})
		return m
	})
}

// idle opens n connections, asks once on each, and holds them open while f runs.
func (p *probe) idle(n int, f func()) measured {
	conns := make([]*conn, n)
	var m measured
	var next atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				c, err := p.open()
				if err == nil {
					_, _, err = c.ask(c.request(p, "GET", "/", ""))
				}
				mu.Lock()
				if conns[i] = c; err != nil {
					m.errs, m.err = m.errs+1, err
				} else {
					m.ops++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	f()
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
	return m
}

// lookups asks for one name over and over.
func lookups(server string, d time.Duration, n int) measured {
	// id, flags RD, one question: raw.perf.test A IN
	query := []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03raw\x04perf\x04test\x00\x00\x01\x00\x01")
	return during(d, n, func(until func() bool) (m measured) {
		c, err := net.Dial("udp", server)
		if err != nil {
			m.fail(err)
			return m
		}
		defer c.Close()
		buf := make([]byte, 512)
		for until() {
			if m.ops&255 == 0 {
				_ = c.SetDeadline(time.Now().Add(time.Second))
			}
			if _, err = c.Write(query); err == nil {
				var k int
				if k, err = c.Read(buf); err == nil && (k < 12 || buf[7] != 1) {
					err = errors.New("an answer without an address")
				}
			}
			if err != nil {
				m.fail(err)
				continue
			}
			m.ops++
		}
		return m
	})
}
