package verify

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

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
	return &history{f: f, size: size, in: bufio.NewReaderSize(io.NewSectionReader(f, 0, size), 16<<10)}
}

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
