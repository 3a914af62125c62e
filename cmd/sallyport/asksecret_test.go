package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/broker/secret"
)

// terminal returns both ends of a pseudo-terminal (pty(7)).
func terminal(t *testing.T) (person, tty *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = person.Close() })
	fd := int(person.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close() })
	return person, tty
}

func echoes(t *testing.T, tty *os.File) bool {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return s.Lflag&unix.ECHO != 0
}

// TestSecretIsAskedWithoutEcho: nothing that is typed is shown, from the prompt on,
// and the terminal is as it was in the end.
func TestSecretIsAskedWithoutEcho(t *testing.T) {
	const typed = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
	type answer struct {
		v   secret.Value
		err error
	}
	ask := func(ctx context.Context) (shown *bufio.Reader, person, tty *os.File, done chan answer) {
		person, tty = terminal(t)
		done = make(chan answer, 1)
		go func() {
			v, err := askSecret(ctx, tty, tty, "api")
			done <- answer{v, err}
		}()
		shown = bufio.NewReader(person)
		if prompt, err := shown.ReadString(')'); err != nil || !strings.Contains(prompt, "secret of api (it is not shown") {
			t.Fatalf("asked %q, %v", prompt, err)
		}
		return shown, person, tty, done
	}
	shown, person, tty, done := ask(t.Context())
	if echoes(t, tty) {
		t.Error("the prompt comes before the echo is off")
	}
	if _, err := person.WriteString(typed + "\n"); err != nil {
		t.Fatal(err)
	}
	a := <-done
	if a.err != nil || string(a.v.Reveal()) != typed || !echoes(t, tty) {
		t.Errorf("read %d octets, %v, echo back %v", len(a.v.Reveal()), a.err, echoes(t, tty))
	}
	if _, err := tty.WriteString("end\n"); err != nil {
		t.Fatal(err)
	}
	rest, err := shown.ReadString('d')
	if err != nil || strings.Contains(rest, typed[:4]) || !strings.HasPrefix(rest, ": ") {
		t.Errorf("then it showed %q, %v", rest, err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	_, _, tty, done = ask(ctx)
	interrupted := errors.New("interrupted")
	cancel(interrupted)
	if a := <-done; !errors.Is(a.err, interrupted) || !echoes(t, tty) {
		t.Errorf("^C: %v, echo back %v", a.err, echoes(t, tty))
	}
}
