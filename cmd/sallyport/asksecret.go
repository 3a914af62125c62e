package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"sallyport/broker/secret"
	"sallyport/broker/source"
)

// askSecret reads a secret: from a terminal without echo, or all of a pipe. One
// line end at its end is taken off. The end of ctx ends it, on a terminal too.
func askSecret(ctx context.Context, in io.Reader, prompt io.Writer, name string) (secret.Value, error) {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		b, err := io.ReadAll(io.LimitReader(in, source.MaxLen+3))
		if err != nil {
			return secret.Value{}, fmt.Errorf("reading the secret: %w", err)
		}
		return oneSecret(b)
	}
	b, err := askTerminal(ctx, int(f.Fd()), prompt, name)
	if err != nil {
		return secret.Value{}, fmt.Errorf("reading the secret: %w", err)
	}
	return oneSecret(b)
}

// askTerminal asks once nothing is echoed any more, so that what is typed, or pasted,
// at once is not shown either. What the terminal does otherwise is as before in the
// end, also when ctx ends first: the signal of ^C only ends ctx.
func askTerminal(ctx context.Context, fd int, prompt io.Writer, name string) ([]byte, error) {
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	quiet := *before
	quiet.Lflag &^= unix.ECHO
	quiet.Lflag |= unix.ICANON | unix.ISIG
	quiet.Iflag |= unix.ICRNL
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &quiet); err != nil {
		return nil, err
	}
	fmt.Fprintf(prompt, "secret of %s (it is not shown; several lines come through a pipe): ", name)
	type typed struct {
		b   []byte
		err error
	}
	done := make(chan typed, 1)
	go func() { // ends with a line, or with the process
		b, err := readLine(fd)
		done <- typed{b, err}
	}()
	var t typed
	select {
	case t = <-done:
	case <-ctx.Done():
		t.err = context.Cause(ctx)
	}
	fmt.Fprintln(prompt)
	return t.b, errors.Join(t.err, unix.IoctlSetTermios(fd, unix.TCSETS, before))
}

// readLine reads one line of a terminal in canonical mode (termios(3)), without its
// end. term.ReadPassword does that too, but sets the terminal's mode by itself, which
// may come after the mode was put back for a ctx that ended.
func readLine(fd int) ([]byte, error) {
	var line []byte
	piece := make([]byte, 4096) // the longest line of a terminal
	for {
		n, err := unix.Read(fd, piece)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 && len(line) == 0 {
			return nil, io.EOF
		}
		whole, ended := bytes.CutSuffix(piece[:n], []byte("\n"))
		line = append(line, whole...)
		if ended || n == 0 || len(line) > source.MaxLen {
			return line, nil
		}
	}
}
