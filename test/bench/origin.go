package main

import (
	"bufio"
	"context"
	"crypto/sha1" // RFC 6455 asks for it
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// runOrigin serves, in the clear and in TLS, HTTP/1.1 only:
//
//	GET  /          16 octets
//	GET  /bytes/N   N octets
//	POST /upload    the number of octets that came
//	GET  /events    events 5 ms apart, each with the time it was written at
//	GET  /ws        a WebSocket that says everything back
func runOrigin(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("origin", flag.ContinueOnError)
	dir := fs.String("dir", "", "directory with the authorities")
	addr := fs.String("addr", originAddr, "address to listen on")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if err := loopback(*addr + ":1"); err != nil {
		return err
	}
	ca, err := loadAuthority(*dir, "origin-ca")
	if err != nil {
		return err
	}
	leaf, err := ca.leaf("*.perf.test", "*."+coldZone)
	if err != nil {
		return err
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{*leaf}, NextProtos: []string{"http/1.1"}}
	for port, wrap := range map[string]func(net.Conn) net.Conn{
		plainPort: func(c net.Conn) net.Conn { return c },
		tlsPort:   func(c net.Conn) net.Conn { return tls.Server(c, cfg) },
	} {
		l, err := net.Listen("tcp", net.JoinHostPort(*addr, port))
		if err != nil {
			return err
		}
		go accept(l, func(c net.Conn) { originConn(wrap(c)) })
	}
	return ready(ctx, "origin")
}

// ready tells whoever started this process that it listens, and waits.
func ready(ctx context.Context, words ...any) error {
	fmt.Println(append([]any{"ready"}, words...)...)
	<-ctx.Done()
	return nil
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			go serve(c)
		}
	}
}

// filler is what bodies are made of.
var filler = func() []byte {
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}()

var smallAnswer = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 16\r\n\r\n0123456789abcdef")

func originConn(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		switch path := req.URL.Path; path {
		case "/":
			_, err = c.Write(smallAnswer)
		case "/upload":
			n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, req.Body, make([]byte, 64<<10))
			_, err = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%d", len(strconv.FormatInt(n, 10)), n)
		case "/events":
			events(c)
			return
		case "/ws":
			echo(c, br, req)
			return
		default:
			err = bulk(c, path)
		}
		if err != nil || req.Close {
			return
		}
	}
}

func bulk(c net.Conn, path string) error {
	var n int64
	if _, err := fmt.Sscanf(path, "/bytes/%d", &n); err != nil {
		_, err = io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
		return err
	}
	if _, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n", n); err != nil {
		return err
	}
	for n > 0 {
		k, err := c.Write(filler[:min(n, int64(len(filler)))])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}

func events(c net.Conn) {
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	for err == nil {
		e := fmt.Sprintf("data: %d\n\n", time.Now().UnixNano())
		_, err = fmt.Fprintf(c, "%x\r\n%s\r\n", len(e), e)
		time.Sleep(5 * time.Millisecond)
	}
}

// echo says back every frame, which must be a whole short binary message.
func echo(c net.Conn, br *bufio.Reader, req *http.Request) {
	sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	_, err := fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	var frame [2 + 4 + 125]byte
	for err == nil {
		if _, err = io.ReadFull(br, frame[:6]); err != nil {
			return
		}
		n := int(frame[1] & 0x7f)
		body := frame[6 : 6+n]
		if _, err = io.ReadFull(br, body); err != nil {
			return
		}
		mask := binary.LittleEndian.Uint32(frame[2:])
		for i := range body {
			body[i] ^= byte(mask >> (8 * (i & 3)))
		}
		frame[4], frame[5] = 0x82, byte(n)
		_, err = c.Write(frame[4 : 6+n])
	}
}
