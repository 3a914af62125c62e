package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"sync"

	"github.com/miekg/dns"
)

// The references: no policy, no log, no credential.
//
//	raw     CONNECT and io.Copy, which splices
//	mitm    TLS ended on both sides, requests read and written with net/http's
//	        parsers by one goroutine, an upstream connection for each tunnel
//	stdlib  http.Server, httputil.ReverseProxy and http.Transport
//	dns     github.com/miekg/dns with a handler that always answers the same
func runRef(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("ref", flag.ContinueOnError)
	dir := fs.String("dir", "", "directory with the authorities")
	listen := fs.String("listen", "", "where to listen")
	mode := fs.String("mode", "raw", "raw, mitm, stdlib or dns")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := loopback(*listen); err != nil {
		return err
	}
	if *mode == "dns" {
		return refDNS(ctx, *listen)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	r, err := newReference(*dir)
	if err != nil {
		return err
	}
	switch *mode {
	case "raw":
		go accept(l, r.raw)
	case "mitm":
		go accept(l, r.mitm)
	case "stdlib":
		go r.stdlib(l)
	default:
		return fmt.Errorf("there is no reference %q", *mode)
	}
	return ready(ctx, *mode)
}

type reference struct {
	ca       *authority
	upstream *tls.Config
	server   *tls.Config
}

func newReference(dir string) (*reference, error) {
	ca, err := loadAuthority(dir, "ref-ca")
	if err != nil {
		return nil, err
	}
	roots, err := poolOf(filepath.Join(dir, "origin-ca.crt"))
	if err != nil {
		return nil, err
	}
	r := &reference{ca: ca, upstream: &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}}}
	r.server = &tls.Config{NextProtos: []string{"http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return r.ca.leaf(h.ServerName)
	}}
	return r, nil
}

// dial reaches the one origin, whatever name is asked for.
func (*reference) dial(port string) (net.Conn, error) {
	return net.Dial("tcp", net.JoinHostPort(originAddr, port))
}

// connect reads a CONNECT and agrees to it.
func connect(c net.Conn) (host, port string, br *bufio.Reader, err error) {
	br = bufio.NewReader(c)
	req, err := http.ReadRequest(br)
	if err != nil {
		return "", "", nil, err
	}
	if host, port, err = net.SplitHostPort(req.RequestURI); err != nil {
		return "", "", nil, err
	}
	return host, port, br, nil
}

const agreed = "HTTP/1.1 200 Connection established\r\n\r\n"

func (r *reference) raw(c net.Conn) {
	defer c.Close()
	_, port, br, err := connect(c)
	if err != nil {
		return
	}
	up, err := r.dial(port)
	if err != nil {
		return
	}
	defer up.Close()
	if _, err := io.WriteString(c, agreed); err != nil {
		return
	}
	if n := br.Buffered(); n > 0 {
		early, _ := br.Peek(n)
		if _, err := up.Write(early); err != nil {
			return
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(c, up)
		halfClose(c)
	}()
	_, _ = io.Copy(up, c)
	halfClose(up)
	<-done
}

func halfClose(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// terminate ends the client's TLS after its CONNECT.
func (r *reference) terminate(c net.Conn) (*tls.Conn, string, string, error) {
	host, port, _, err := connect(c)
	if err != nil {
		return nil, "", "", err
	}
	if _, err := io.WriteString(c, agreed); err != nil {
		return nil, "", "", err
	}
	t := tls.Server(c, r.server)
	return t, host, port, t.Handshake()
}

func (r *reference) mitm(c net.Conn) {
	defer c.Close()
	client, host, port, err := r.terminate(c)
	if err != nil {
		return
	}
	raw, err := r.dial(port)
	if err != nil {
		return
	}
	defer raw.Close()
	cfg := r.upstream.Clone()
	cfg.ServerName = host
	up := tls.Client(raw, cfg)
	if err := up.Handshake(); err != nil {
		return
	}
	relayRequests(client, up)
}

const largeBody = 16 << 10

var largeWriters = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 64<<10) }}

// relayRequests carries requests one after the other until one side has had enough.
func relayRequests(client, up net.Conn) {
	cr, ur := bufio.NewReader(client), bufio.NewReader(up)
	for {
		req, err := http.ReadRequest(cr)
		if err != nil {
			return
		}
		last := req.Close
		req.Close = false
		if req.Header.Get("Upgrade") == "" {
			req.Header.Del("Connection")
		}
		if err := writeThrough(up, req.ContentLength, req.Write); err != nil {
			return
		}
		resp, err := http.ReadResponse(ur, req)
		if err != nil {
			return
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			if resp.Write(client) == nil {
				exchangeBytes(client, cr, up, ur)
			}
			return
		}
		resp.Close = resp.Close || last
		if err := writeThrough(client, resp.ContentLength, resp.Write); err != nil || resp.Close {
			return
		}
	}
}

// writeThrough writes a message: short ones at once, long ones in large
// pieces, and those of unknown length as they come.
func writeThrough(w io.Writer, length int64, write func(io.Writer) error) error {
	if length < 0 {
		return write(w)
	}
	if length <= largeBody {
		b := bufio.NewWriter(w)
		if err := write(b); err != nil {
			return err
		}
		return b.Flush()
	}
	b, _ := largeWriters.Get().(*bufio.Writer)
	b.Reset(w)
	defer largeWriters.Put(b)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}

// exchangeBytes carries a WebSocket.
func exchangeBytes(client net.Conn, cr *bufio.Reader, up net.Conn, ur *bufio.Reader) {
	go func() {
		_, _ = io.Copy(up, cr)
		_ = up.Close()
	}()
	_, _ = io.Copy(client, ur)
}

type copyBuffers struct{ pool sync.Pool }

func (b *copyBuffers) Get() []byte {
	if p, ok := b.pool.Get().(*[32 << 10]byte); ok {
		return p[:]
	}
	return make([]byte, 32<<10)
}

func (b *copyBuffers) Put(p []byte) { b.pool.Put((*[32 << 10]byte)(p)) }

// handedOver is a listener of connections that were accepted elsewhere.
type handedOver struct {
	ch   chan net.Conn
	addr net.Addr
}

func (h *handedOver) Accept() (net.Conn, error) { return <-h.ch, nil }
func (h *handedOver) Close() error              { return nil }
func (h *handedOver) Addr() net.Addr            { return h.addr }

func (r *reference) stdlib(l net.Listener) {
	silent := log.New(io.Discard, "", 0)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) { p.Out.URL.Scheme, p.Out.URL.Host = "https", p.In.Host },
		Transport: &http.Transport{
			DialContext: func(_ context.Context, _, addr string) (net.Conn, error) {
				_, port, err := net.SplitHostPort(addr)
				if err != nil {
					return nil, err
				}
				return r.dial(port)
			},
			TLSClientConfig: r.upstream, MaxIdleConnsPerHost: 64, DisableCompression: true,
		},
		FlushInterval: -1, BufferPool: &copyBuffers{}, ErrorLog: silent,
	}
	inner := &handedOver{make(chan net.Conn), l.Addr()}
	go func() { _ = (&http.Server{Handler: proxy, ErrorLog: silent}).Serve(inner) }()
	accept(l, func(c net.Conn) {
		if t, _, _, err := r.terminate(c); err == nil {
			inner.ch <- t
			return
		}
		_ = c.Close()
	})
}

func refDNS(ctx context.Context, listen string) error {
	pc, err := net.ListenPacket("udp", listen)
	if err != nil {
		return err
	}
	started := make(chan struct{})
	s := &dns.Server{PacketConn: pc, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30},
			A:   net.IPv4(198, 18, 0, 1).To4(),
		}}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = s.ActivateAndServe() }()
	<-started
	return ready(ctx, "dns")
}
