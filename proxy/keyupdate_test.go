package proxy_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
)

// updater sends what crypto/tls would not: KeyUpdate messages (RFC 8446 section
// 4.6.3) in records of its own, on a connection of TLS_AES_128_GCM_SHA256 on
// which nothing was sent after the handshake.
type updater struct {
	conn   net.Conn
	secret []byte
}

// newUpdater takes the client's first traffic secret from a key log.
func newUpdater(t *testing.T, c net.Conn, log string) *updater {
	t.Helper()
	for line := range strings.Lines(log) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "CLIENT_TRAFFIC_SECRET_0" {
			secret, err := hex.DecodeString(f[2])
			must(t, err)
			return &updater{c, secret}
		}
	}
	t.Fatal("no traffic secret in the key log")
	return nil
}

// expand is HKDF-Expand-Label without a context (RFC 8446 section 7.1).
func (u *updater) expand(label string, n int) []byte {
	label = "tls13 " + label
	info := append(binary.BigEndian.AppendUint16(nil, uint16(n)), byte(len(label)))
	info = append(append(info, label...), 0)
	key, err := hkdf.Expand(sha256.New, u.secret, string(info), n)
	if err != nil {
		panic(err)
	}
	return key
}

// update sends one KeyUpdate that asks for another in return. It is the first
// record under each key, so the nonce is the static one.
func (u *updater) update() error {
	block, err := aes.NewCipher(u.expand("key", 16))
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	inner := []byte{24, 0, 0, 1, 1, 22} // key_update, length 1, update_requested; a handshake record
	head := []byte{23, 3, 3, 0, byte(len(inner) + aead.Overhead())}
	record := aead.Seal(bytes.Clone(head), u.expand("iv", 12), inner, head)
	u.secret = u.expand("traffic upd", sha256.Size)
	_, err = u.conn.Write(record)
	return err
}

// TestKeyUpdates is TL-16: a client that does nothing but change keys is let go,
// soon, and is recorded once; one that changes them now and then is served.
func TestKeyUpdates(t *testing.T) {
	for name, open := range opens() {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.serveOrigin("ok.test", false, &witness{})
			c, err := open(l, t.Context(), "ok.test:443")
			must(t, err)
			defer c.Close()
			var keys bytes.Buffer
			_, err = handshake(t, l, c, &tls.Config{ServerName: "ok.test", KeyLogWriter: &keys, CurvePreferences: []tls.CurveID{tls.X25519}})
			must(t, err)
			u := newUpdater(t, c, keys.String())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.Copy(io.Discard, c)
			}()
			sent := flood(u, ended)
			<-ended
			if sent > 100_000 {
				t.Errorf("%d changes of keys were taken", sent)
			}
			wantRefusal(t, l, "no_request")
			wantNothingDialled(t, l)

			// The twin: octets one by one in a record each are a request all the same.
			c, err = open(l, t.Context(), "ok.test:443")
			must(t, err)
			defer c.Close()
			tc, err := handshake(t, l, c, &tls.Config{ServerName: "ok.test"})
			must(t, err)
			if status, _, body := exchangeRaw(t, dribble{tc}, get); status != 200 {
				t.Errorf("a request in small records: %d %s", status, body)
			}
		})
	}
}

// flood updates until the connection has ended, and returns how often.
func flood(u *updater, ended <-chan struct{}) (sent int) {
	for u.update() == nil {
		sent++
		select {
		case <-ended:
			return sent
		default:
		}
	}
	return sent
}

// TestRenegotiation is TL-16 for TLS 1.2: a client that asks for it is let go.
func TestRenegotiation(t *testing.T) {
	l := newLab(t)
	l.serveOrigin("ok.test", false, &witness{})
	cmd := exec.CommandContext(t.Context(), "openssl", "s_client", "-tls1_2", "-connect", l.vip("ok.test:443"), "-servername", "ok.test")
	in, err := cmd.StdinPipe()
	must(t, err)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	_, err = io.WriteString(in, "R\n")
	must(t, err)
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "RENEGOTIATING") || strings.Count(got, "Cipher is") > 1 {
		t.Errorf("openssl says:\n%s", got)
	}
	_ = in.Close()
	wantRefusal(t, l, "no_request")
}
