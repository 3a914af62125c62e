package verify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"sallyport/audit/checkpoint"
)

// history reads the signed notes of the checkpoints' file, one after another.
type history struct {
	f     *os.File
	in    *bufio.Reader
	size  int64 // that was read
	line  int64
	began int64 // line at which the last note begins
	torn  int64 // bytes after the last whole note
}

func newHistory(f *os.File, size int64) *history {
	h := historyOf(io.NewSectionReader(f, 0, size))
	h.f, h.size = f, size
	return h
}

func historyOf(r io.Reader) *history { return &history{in: bufio.NewReaderSize(r, 16<<10)} }

// read returns the next note, nil at the end. A note has two empty lines: one
// between its text and its signature, and one after it.
func (h *history) read() ([]byte, error) {
	var msg []byte
	h.began = h.line + 1
	for blanks := 0; blanks < 2; {
		line, err := h.in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			h.torn = int64(len(msg) + len(line))
			return nil, nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, fmt.Errorf("reading the checkpoints: %w", err)
		}
		h.line++
		if len(msg)+len(line) > checkpoint.MaxSize {
			return nil, &Problem{BadHistory, "checkpoints", h.began, -1, -1, "a checkpoint is too long"}
		}
		msg = append(msg, line...)
		if len(line) == 1 {
			blanks++
		}
	}
	return msg[:len(msg)-1], nil
}

// Checkpoints reads checkpoints of a log, as they stand in its file, and checks
// that each is signed with its key and comes after the one before; if all is set,
// also that none is missing before the last. It hands each to use and returns how
// many there are, and how many octets after the last are no whole checkpoint.
func Checkpoints(r io.Reader, key string, all bool, use func(msg []byte)) (n int, torn int64, err error) {
	v, err := verifier(key)
	if err != nil {
		return 0, 0, err
	}
	h := historyOf(r)
	for last := int64(-1); ; n++ {
		msg, err := h.read()
		if err != nil {
			return n, 0, err
		}
		if msg == nil {
			return n, h.torn, nil
		}
		switch cp, err := checkpoint.Open(msg, v); {
		case err != nil:
			return n, 0, fmt.Errorf("line %d: %w", h.began, err)
		case all && cp.Number != last+1:
			return n, 0, fmt.Errorf("line %d: checkpoint %d should stand here, and it is %d", h.began, last+1, cp.Number)
		case cp.Number <= last:
			return n, 0, fmt.Errorf("line %d: checkpoint %d stands after checkpoint %d", h.began, cp.Number, last)
		default:
			last = cp.Number
		}
		use(msg)
	}
}

// errHistory means that the file of checkpoints is not as a log has it.
var errHistory = errors.New("the file of checkpoints is not whole")

// newest returns the last checkpoint of a file, nil if it is empty.
func newest(f io.ReaderAt, size int64) ([]byte, error) {
	const most = 3 * checkpoint.MaxSize // one, and what is not finished
	data, err := readAt(f, max(0, size-most), most)
	if err != nil || size == 0 {
		return nil, err
	}
	msg, _ := checkpoint.Last(data)
	if msg == nil {
		return nil, errHistory
	}
	return bytes.Clone(msg), nil
}

// covering returns the first checkpoint in a file that covers record seq, and
// where it ends. It looks from a place where one begins; those in the file are in
// their order, or else what is returned is not what was asked for.
func covering(f io.ReaderAt, size, from, seq int64) (msg []byte, end int64, err error) {
	low, high := from, size // where it begins is between them
	for high-low > 4*checkpoint.MaxSize {
		at, err := nextNote(f, (low+high)/2)
		if err == nil && at >= high {
			err = errHistory
		}
		if err != nil {
			return nil, 0, err
		}
		msg, err := historyOf(io.NewSectionReader(f, at, size-at)).read()
		if err != nil {
			return nil, 0, err
		}
		if covers(msg) > seq || msg == nil { // a torn one is the last
			high = at
		} else {
			low = at + int64(len(msg)) + 1
		}
	}
	h := historyOf(io.NewSectionReader(f, low, size-low))
	for {
		msg, err := h.read()
		if err == nil && msg == nil {
			err = errHistory
		}
		if err != nil {
			return nil, 0, err
		}
		low += int64(len(msg)) + 1
		if covers(msg) > seq {
			return msg, low, nil
		}
	}
}

// covers returns how many records a checkpoint says that it covers, whoever signed it.
func covers(msg []byte) int64 {
	_, rest, _ := bytes.Cut(msg, []byte("\n"))
	digits, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// nextNote returns where the first note begins that does so after at. The line of a
// signature begins with a dash, and an empty line follows it.
func nextNote(f io.ReaderAt, at int64) (int64, error) {
	data, err := readAt(f, at, 2*checkpoint.MaxSize)
	if err != nil {
		return 0, err
	}
	sig := bytes.Index(data, []byte("\n— "))
	if sig < 0 {
		return 0, errHistory
	}
	end := bytes.Index(data[sig:], []byte("\n\n"))
	if end < 0 {
		return 0, errHistory
	}
	return at + int64(sig+end+2), nil
}

// readAt reads as much as there is, most octets at most.
func readAt(f io.ReaderAt, at, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.NewSectionReader(f, at, most))
	if err != nil {
		return nil, fmt.Errorf("reading the checkpoints: %w", err)
	}
	return data, nil
}
