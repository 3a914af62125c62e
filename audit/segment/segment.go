// Package segment is the form of a log's segment files: their names, and how
// old ones are packed.
//
// A segment is a file of lines. A packed one is a Zstandard file (RFC 8878)
// that any reader of that format unpacks: a skippable frame that tells which
// records it holds, and a frame of lines. The package trusts nothing that it
// reads: memory is bounded, and what the head claims is the claim of whoever
// wrote the file. It opens, names and removes no file.
package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// PackedSuffix is what the name of a packed segment has at its end.
const PackedSuffix = ".zst"

// Name returns the name of the segment that begins with record first.
func Name(first int64) string { return fmt.Sprintf("%012d.jsonl", first) }

// PackedName returns its name once it is packed.
func PackedName(first int64) string { return Name(first) + PackedSuffix }

// Parse reads the name of a file of a log. ok is false for what is no segment.
func Parse(name string) (first int64, packed, ok bool) {
	plain, packed := strings.CutSuffix(name, PackedSuffix)
	digits, isSegment := strings.CutSuffix(plain, ".jsonl")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !isSegment || err != nil || n < 0 || Name(n) != plain {
		return 0, false, false
	}
	return n, packed, true
}

// Head is what the first frame of a packed segment says.
type Head struct {
	First   int64 // number of its first record
	Records int64
}

const (
	skippable = 0x184d2a50 // RFC 8878 section 3.1.2
	headSize  = 8 + 16
	maxWindow = 16 << 20
)

// Pack writes the lines of r, which hold head.Records records, packed to w.
func Pack(w io.Writer, r io.Reader, head Head) error {
	var b [headSize]byte
	binary.LittleEndian.PutUint32(b[0:], skippable)
	binary.LittleEndian.PutUint32(b[4:], headSize-8)
	binary.LittleEndian.PutUint64(b[8:], uint64(head.First))
	binary.LittleEndian.PutUint64(b[16:], uint64(head.Records))
	if _, err := w.Write(b[:]); err != nil {
		return fmt.Errorf("packing a segment: %w", err)
	}
	z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true), zstd.WithWindowSize(8<<20))
	if err != nil {
		return fmt.Errorf("packing a segment: %w", err)
	}
	_, err = io.Copy(z, r)
	if err := errors.Join(err, z.Close()); err != nil {
		return fmt.Errorf("packing a segment: %w", err)
	}
	return nil
}

// ReadHead reads the first frame of a packed segment.
func ReadHead(r io.Reader) (Head, error) {
	var b [headSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Head{}, fmt.Errorf("reading a packed segment: %w", err)
	}
	h := Head{int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))}
	if binary.LittleEndian.Uint32(b[0:]) != skippable || binary.LittleEndian.Uint32(b[4:]) != headSize-8 || h.First < 0 || h.Records < 0 {
		return Head{}, errors.New("reading a packed segment: its first frame does not tell what it holds")
	}
	return h, nil
}

// Unpack returns the lines of a packed segment. Closing it does not close r.
func Unpack(r io.Reader) (io.ReadCloser, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, fmt.Errorf("unpacking a segment: %w", err)
	}
	return z.IOReadCloser(), nil
}
