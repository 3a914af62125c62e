package bulk_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/proxy/bulk"
)

// far is the other end: TLS as crypto/tls has it, whose ciphertext can be kept back.
type far struct {
	*tls.Conn
	wire *held
	near syscall.RawConn // the socket that it writes to
	back *counted        // and what that writes
}

// counted is a connection that counts what is written.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// held is a connection that may keep what is written.
type held struct {
	net.Conn
	keeps bool
	kept  bytes.Buffer
	sent  int // octets
}

func (h *held) Write(p []byte) (int, error) {
	if h.keeps {
		return h.kept.Write(p)
	}
	n, err := h.Conn.Write(p)
	h.sent += n
	return n, err
}

// send lets n octets of what was kept go; less than 0: all.
func (h *held) send(t *testing.T, n int) {
	t.Helper()
	if n < 0 {
		n = h.kept.Len()
	}
	k, err := h.Conn.Write(h.kept.Next(n))
	if h.sent += k; err != nil {
		t.Fatal(err)
	}
}

// arrived does something, and waits until the octets that it sends are there to be read,
// or their end: the kernel may take its time, on a loopback too.
func (f far) arrived(t *testing.T, do func()) {
	t.Helper()
	before := f.wire.sent
	do()
	var set, polled error
	err := f.near.Control(func(fd uintptr) {
		least := func(n int) error { return unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) }
		set = least(max(1, f.wire.sent-before))
		n := 0
		for polled = unix.EINTR; polled == unix.EINTR; {
			n, polled = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		}
		if polled == nil && n == 0 {
			polled = os.ErrDeadlineExceeded
		}
		set = errors.Join(set, least(1))
	})
	if err := errors.Join(err, set, polled); err != nil {
		t.Fatalf("waiting for what was sent: %v", err)
	}
}

var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

// pair returns a connection and its other end. What it stands on is asked what is there
// if asked is true.
func pair(t *testing.T, version uint16, asked bool, touch func()) (*bulk.Conn, far) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), c.Close() })
	f := far{wire: &held{Conn: c}, back: &counted{Conn: near}}
	f.Conn = tls.Server(f.wire, &tls.Config{
		Certificates: []tls.Certificate{certificate()}, MinVersion: version, MaxVersion: version, DynamicRecordSizingDisabled: true,
	})
	done := make(chan error, 1)
	go func() { done <- f.Handshake() }()
	secure := tls.Client(bulk.Below(f.back, touch), &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, DynamicRecordSizingDisabled: true})
	if err := errors.Join(secure.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	if f.near, err = near.(*net.TCPConn).SyscallConn(); err != nil {
		t.Fatal(err)
	}
	if !asked {
		return bulk.Over(secure, nil), f
	}
	return bulk.Over(secure, f.near), f
}

// each runs a test over both versions of TLS, with a socket that can be asked and one
// that cannot.
func each(t *testing.T, f func(t *testing.T, c *bulk.Conn, to far, asked bool)) {
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		for _, asked := range []bool{true, false} {
			t.Run(name+map[bool]string{true: " asked", false: " as it is"}[asked], func(t *testing.T) {
				c, to := pair(t, version, asked, nil)
				f(t, c, to, asked)
			})
		}
	}
}

// text is n octets that are not alike.
func text(n int) []byte {
	b := make([]byte, n)
	r := mrand.New(mrand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func write(t *testing.T, w io.Writer, b []byte) {
	t.Helper()
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
}

// A read hands out what is there, and waits for nothing that comes after.
func TestWhatIsThereIsRead(t *testing.T) {
	each(t, func(t *testing.T, c *bulk.Conn, to far, asked bool) {
		buf, reads := make([]byte, 64<<10), 0
		for _, n := range []int{1, 100, 5000, 20000, 64 << 10, 64 << 10, 64 << 10, 63 << 10} {
			want := text(n)
			to.arrived(t, func() { write(t, to, want) })
			reads = 0
			for got := 0; got < n; reads++ {
				k, err := c.Read(buf[got:])
				if err != nil {
					t.Fatal(err)
				}
				got += k
			}
			if !bytes.Equal(buf[:n], want) {
				t.Fatalf("%d octets came changed", n)
			}
		}
		if asked && reads > 2 {
			t.Errorf("%d reads for four records that were there", reads)
		}
	})
}

// Room that ends within a record has its few last octets read with what comes behind them.
func TestTheRestOfARecordIsNotReadAlone(t *testing.T) {
	each(t, func(t *testing.T, c *bulk.Conn, to far, _ bool) {
		to.wire.keeps = true
		want := text(5100)
		write(t, to, want[:5000])
		write(t, to, want[5000:])
		to.wire.send(t, -1) // crypto/tls reads the second, which is short, with the first
		got := make([]byte, len(want))
		if n, err := c.Read(got[:4998]); n != 4998 || err != nil {
			t.Fatalf("Read = %d, %v", n, err)
		}
		if n, err := c.Read(got[4998:]); n != 102 || err != nil || !bytes.Equal(got, want) {
			t.Fatalf("Read = %d, %v, want two octets and the record behind them", n, err)
		}
	})
}

func TestWhatIsWrittenArrives(t *testing.T) {
	each(t, func(t *testing.T, c *bulk.Conn, to far, _ bool) {
		for _, n := range []int{0, 1, 16 << 10, 16<<10 + 1, 32 << 10, 64 << 10, 3<<20 + 5} {
			want, got := text(n), make([]byte, n)
			done := make(chan error, 1)
			to.back.writes.Store(0)
			go func() {
				_, err := io.ReadFull(to, got)
				done <- err
			}()
			if k, err := c.Write(want); k != n || err != nil {
				t.Fatalf("Write = %d, %v, want %d", k, err, n)
			}
			if err := <-done; err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d octets came changed, or %v", n, err)
			}
			if writes := to.back.writes.Load(); n <= 64<<10 && writes > 1 {
				t.Errorf("%d writes for %d octets", writes, n)
			}
		}
	})
}

// What a read came upon behind its octets is said by the next one, and stays.
func TestTheEndIsTold(t *testing.T) {
	each(t, func(t *testing.T, c *bulk.Conn, to far, _ bool) {
		want := text(40000)
		write(t, to, want)
		if err := to.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d octets and %v, want %d", len(got), err, len(want))
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("then %v, want EOF", err)
		}
	})
}

// An end without TLS's own is told as one where a record is cut off, and a reset as such.
func TestABreakIsTold(t *testing.T) {
	for _, asked := range []bool{true, false} {
		c, to := pair(t, tls.VersionTLS13, asked, nil)
		to.wire.keeps = true
		write(t, to, text(40000))
		to.wire.send(t, 30000)
		_ = to.wire.Conn.Close()
		got, err := io.ReadAll(c)
		if len(got) != 16<<10 || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("asked %v: %d octets and %v, want one record and an unexpected EOF", asked, len(got), err)
		}

		c, to = pair(t, tls.VersionTLS13, asked, nil)
		write(t, to, text(100))
		if _, err := c.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		_ = to.wire.Conn.(*net.TCPConn).SetLinger(0)
		_ = to.wire.Conn.Close()
		if _, err := io.ReadAll(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("asked %v: %v, want a reset", asked, err)
		}
		if _, err := c.Write(text(1 << 20)); err == nil {
			t.Errorf("asked %v: wrote to a connection that was reset", asked)
		}
	}
}

func TestReadyIsCertain(t *testing.T) {
	each(t, func(t *testing.T, c *bulk.Conn, to far, asked bool) {
		if c.Ready() {
			t.Fatal("ready before anything was said")
		}
		to.wire.keeps = true
		want := text(20000)
		write(t, to, want)
		to.arrived(t, func() { to.wire.send(t, 10000) })
		if c.Ready() {
			t.Fatal("ready with half a record")
		}
		to.arrived(t, func() { to.wire.send(t, -1) })
		if got := c.Ready(); got != asked {
			t.Fatalf("Ready = %v with two records, want %v", got, asked)
		}
		if c.Ready() != asked {
			t.Fatal("it is ready once")
		}
		got := make([]byte, len(want))
		if n, err := c.Read(nil); n != 0 || err != nil {
			t.Fatalf("Read of nothing = %d, %v", n, err)
		}
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %v, or other octets", err)
		}
		if c.Ready() {
			t.Fatal("ready when all was read")
		}
		to.wire.keeps = false
		to.arrived(t, func() { _ = to.Close() })
		if asked && !c.Ready() {
			t.Fatal("not ready at the end")
		}
		if _, err := c.Read(got); !errors.Is(err, io.EOF) {
			t.Errorf("at the end %v, want EOF", err)
		}
	})
}

// A deadline ends a read that waits, and the connection goes on behind it.
func TestDeadlines(t *testing.T) {
	each(t, func(t *testing.T, c *bulk.Conn, to far, _ bool) {
		if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("Read = %v, want that its time is over", err)
		}
		if c.Ready() {
			t.Error("ready behind a deadline")
		}
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		want := text(50000)
		write(t, to, want)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %v, or other octets", err)
		}
		if err := c.SetWriteDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(want); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Write = %v, want that its time is over", err)
		}
	})
}

// What is read past the connection below is told.
func TestTouch(t *testing.T) {
	touched := 0
	c, to := pair(t, tls.VersionTLS13, true, func() { touched++ })
	buf := make([]byte, 64<<10)
	for range 16 {
		to.arrived(t, func() { write(t, to, text(len(buf))) })
		if _, err := io.ReadFull(c, buf); err != nil {
			t.Fatal(err)
		}
	}
	if touched == 0 {
		t.Error("nothing was read that the connection does not know of")
	}
}
