package verify

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"

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

// Checkpoints checks a copy of a log's checkpoints against its key: each is
// signed, and none is missing before the last. It returns how many there are,
// and how many octets of history they take: what follows is unfinished.
func Checkpoints(history []byte, key string) (n int, size int64, err error) {
	v, err := note.NewVerifier(strings.TrimSpace(key))
	if err != nil {
		return 0, 0, fmt.Errorf("reading the verifier key: %w", err)
	}
	h := historyOf(bytes.NewReader(history))
	for ; ; n++ {
		msg, err := h.read()
		if err != nil {
			return n, 0, err
		}
		if msg == nil {
			return n, int64(len(history)) - h.torn, nil
		}
		switch cp, err := checkpoint.Open(msg, v); {
		case err != nil:
			return n, 0, fmt.Errorf("line %d: %w", h.began, err)
		case cp.Number != int64(n):
			return n, 0, fmt.Errorf("line %d: checkpoint %d should stand here, and it is %d", h.began, n, cp.Number)
		}
	}
}
