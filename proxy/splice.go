package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

const (
	// bulkReads is how many reads in a row have to fill their buffer before a
	// stream counts as bulk: 1 MiB.
	bulkReads = 16
	// splicePiece is how much is carried before a stream has to prove again
	// that it is one.
	splicePiece = 16 << 20
	// splicePause is how long a stream may hold a pipe and wait.
	splicePause = time.Second
	// maxSplicing bounds the pipes. Those of a user who is not root shrink to a
	// page once they hold 16,384 pages between them (fs.pipe-user-pages-soft),
	// and package net asks for 256 pages each.
	maxSplicing = 32
)

// splice carries a piece of a bulk stream through a pipe in the kernel, where
// both ends are sockets of our own: half the CPU of copying. An idle stream
// would hold two more descriptors for nothing, so it returns when nothing came
// for a while, or a piece is through.
func splice(dst io.Writer, src io.Reader, touch func(), pool *buffers) (int64, error) {
	to, ok1 := bareConn(dst).(*net.TCPConn)
	from, ok2 := bareConn(src).(*net.TCPConn)
	if !ok1 || !ok2 {
		return 0, nil
	}
	defer pool.splicing.Add(-1)
	if pool.splicing.Add(1) > maxSplicing {
		return 0, nil
	}
	if err := from.SetReadDeadline(time.Now().Add(splicePause)); err != nil { //nolint:forbidigo // deadlines are the system's clock's
		return 0, err
	}
	n, err := to.ReadFrom(io.LimitReader(from, splicePiece))
	if n > 0 {
		touch()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil // nothing is lost: what was read was written
	}
	return n, errors.Join(err, from.SetReadDeadline(noDeadline))
}
