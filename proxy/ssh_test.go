package proxy_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"sallyport/audit"
)

// serveSSH answers one connection as a server does that says everything back.
func serveSSH(c net.Conn, cfg *ssh.ServerConfig) {
	_, channels, requests, err := ssh.NewServerConn(c, cfg)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for n := range channels {
		ch, asked, err := n.Accept()
		if err != nil {
			return
		}
		for r := range asked {
			_ = r.Reply(r.Type == "exec", nil)
			if r.Type == "exec" {
				_, _ = io.Copy(ch, ch)
				_, _ = ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, 0))
				_ = ch.Close()
			}
		}
	}
}

// TestSSH is OpenSSH's client against a server that speaks first, by a tcp rule:
// redirected and by CONNECT, 4 MiB there and back, and refused.
func TestSSH(t *testing.T) {
	l := newLab(t)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	signer, err := ssh.NewSignerFromKey(key)
	must(t, err)
	cfg := &ssh.ServerConfig{NoClientAuth: true}
	cfg.AddHostKey(signer)
	l.serveRaw(func(c net.Conn) { serveSSH(c, cfg) })
	run := func(in []byte, host string, args ...string) ([]byte, string, error) {
		all := append([]string{
			"-F", "none", "-T", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "GlobalKnownHostsFile=/dev/null",
			"-o", "LogLevel=ERROR", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
		}, args...)
		cmd := exec.CommandContext(t.Context(), "ssh", append(all, "work@"+host, "cat")...)
		cmd.Stdin = bytes.NewReader(in)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		return out, said.String(), err
	}
	proxied := fmt.Sprintf("ProxyCommand=nc -X connect -x %s %%h %%p", l.explicitAddr)
	sent := make([]byte, 4<<20)
	_, _ = rand.Read(sent)
	for _, tt := range []struct {
		name string
		host func(name string) (string, []string)
	}{
		{"transparent", func(name string) (string, []string) {
			addr, port, err := net.SplitHostPort(l.vip(name + ":5432"))
			must(t, err)
			return addr, []string{"-p", port}
		}},
		{"connect", func(name string) (string, []string) { return name, []string{"-p", "5432", "-o", proxied} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, args := tt.host("raw.test")
			got, said, err := run(sent, host, args...)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d octets came back of %d: %v, %s", len(got), len(sent), err, said)
			}
			records := l.log.await(t, 2)
			if len(records) != 2 || records[0].Rule != "raw" || records[1].Kind != audit.Done || records[1].Sent < int64(len(sent)) || records[1].Received < int64(len(sent)) {
				t.Errorf("records %+v", records)
			}
			host, args = tt.host("evil.test")
			if _, said, err := run(nil, host, args...); err == nil || strings.Contains(said, "timed out") {
				t.Errorf("a host that no rule names: %v, %s", err, said)
			}
			wantRefusal(t, l, "host_not_allowed")
		})
	}
}
