package scrub

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// maxWindow is the memory that an upstream may ask of a decoder; browsers do
// not grant zstd more (RFC 9659).
const maxWindow = 8 << 20

// decoder returns body without one content coding. It reads nothing yet: the
// first octets may be long in coming, and the headers must not wait for them.
func decoder(name string, body io.ReadCloser) (io.ReadCloser, error) {
	open := map[string]func(io.Reader) (io.Reader, error){
		"gzip": openGzip, "x-gzip": openGzip, "deflate": openDeflate, "br": openBrotli, "zstd": openZstd,
	}[lower(name)]
	if open == nil {
		return nil, fmt.Errorf("content coding %q is not known", name)
	}
	return &decoded{src: body, open: open}, nil
}

// lower folds ASCII letters: codings are case-insensitive (RFC 9110 section 8.4.1).
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r - 'A' + 'a'
		}
		return r
	}, s)
}

// decoded opens its decoder at the first Read.
type decoded struct {
	src  io.ReadCloser
	open func(io.Reader) (io.Reader, error)
	r    io.Reader
	err  error
}

// Read implements [io.Reader].
func (d *decoded) Read(p []byte) (int, error) {
	if d.r == nil && d.err == nil {
		d.r, d.err = d.open(d.src)
	}
	if d.err != nil {
		return 0, d.err
	}
	n, err := d.r.Read(p)
	d.err = err
	return n, err
}

// Close implements [io.Closer]. The decoders hold nothing but memory.
func (d *decoded) Close() error { return d.src.Close() }

// openGzip reads the members of a gzip file one by one: what a member says is handed
// out when it ends, and not when another begins, which may be never.
func openGzip(r io.Reader) (io.Reader, error) {
	m := &members{in: bufio.NewReader(r)}
	z, err := gzip.NewReader(m.in)
	if err != nil {
		return nil, err
	}
	m.z = z
	z.Multistream(false)
	return m, nil
}

type members struct {
	in *bufio.Reader
	z  *gzip.Reader
}

// Read implements [io.Reader].
func (m *members) Read(p []byte) (int, error) {
	for {
		n, err := m.z.Read(p)
		if n > 0 || !errors.Is(err, io.EOF) {
			return n, notYet(err)
		}
		if err := m.z.Reset(m.in); err != nil {
			return 0, err // io.EOF where there is no other
		}
		m.z.Multistream(false)
	}
}

// notYet keeps the end of a member from being taken for the end of all.
func notYet(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// openDeflate reads zlib, which the coding is, or bare deflate, which some
// servers take it for.
func openDeflate(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(2)
	switch {
	case errors.Is(err, io.EOF) && len(head) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err // an empty body is taken for empty, as by gzip
	}
	// RFC 1950 section 2.2: method 8, and the two octets are a multiple of 31.
	if head[0]&0x0f == 8 && (uint(head[0])<<8|uint(head[1]))%31 == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}

func openBrotli(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil }

func openZstd(r io.Reader) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
}
