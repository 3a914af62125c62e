package main

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestTerminalIsNotObeyed: what a sandbox wrote reaches a terminal as text, and a file as
// it is.
func TestTerminalIsNotObeyed(t *testing.T) {
	const body = "GET / HTTP/1.1\r\n\r\na\tb\x1b]52;c;eA==\x07\u009b2J\u202e\xffc\n"
	person, tty := terminal(t)
	if err := writeBody(tty, []byte(body)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(person)
	var got strings.Builder
	for range 3 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString(strings.TrimRight(line, "\r\n") + "\n")
	}
	if want := "GET / HTTP/1.1\n\n" + "a\tb" + `\x1b]52;c;eA==\x07\u009b2J\u202e\xffc` + "\n"; strings.ReplaceAll(got.String(), "a       b", "a\tb") != want {
		t.Errorf("a terminal gets %q, want %q", got.String(), want)
	}
	var file bytes.Buffer
	if err := writeBody(&file, []byte(body)); err != nil || file.String() != body {
		t.Errorf("a file gets %q, %v", file.String(), err)
	}
	file.Reset()
	report(hint(errors.New("one\x1b[2J\n\ttwo"), "type\u202e this"), false, &file)
	if want := "sallyport: error: one\\x1b[2J\n\ttwo\nsallyport: hint: type\\u202e this\n"; file.String() != want {
		t.Errorf("reported as %q, want %q", file.String(), want)
	}
}
