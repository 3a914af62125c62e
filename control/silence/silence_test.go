package silence_test

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"sallyport/control/silence"
)

func TestOn(t *testing.T) {
	tests := []struct {
		name string
		do   func(near, far net.Conn) error
		want bool
	}{
		{"the far end says something", func(_, far net.Conn) error { _, err := far.Write([]byte("x")); return err }, false},
		{"the far end closes", func(_, far net.Conn) error { return far.Close() }, false},
		{"the near end is closed", func(near, _ net.Conn) error { return near.Close() }, false},
		{"the near end says something", func(near, _ net.Conn) error { _, err := near.Write([]byte("x")); return err }, true},
		{"nothing", func(net.Conn, net.Conn) error { return nil }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			near, far := pair(t)
			raw, err := near.(syscall.Conn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.do(near, far); err != nil {
				t.Fatal(err)
			}
			if got := silence.On(raw); got != tt.want {
				t.Errorf("On = %v, want %v", got, tt.want)
			}
		})
	}
}

// pair returns the two ends of a unix socket.
func pair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if near, err = net.Dial("unix", path); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}
