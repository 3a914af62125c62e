package proxy_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/proxy"
)

// mysqlPolicy allows one database on the port of which a refusal cannot be said
// inside, since its server speaks first.
const mysqlPolicy = `
apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab, owner: test, description: what a client of a database needs}
rules:
  - id: db
    reason: test
    allow: {host: db.test, ports: [3306], protocol: tcp}
`

// mariaTool returns a program of MariaDB's.
func mariaTool(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{"/usr/bin/", "/usr/sbin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	t.Fatalf("no %s: run deploy/setup.sh clients", name)
	return ""
}

// startMySQL starts a real server with TLS that is db.test:3306, and whose
// certificate is for names. It returns the file in which it writes what it is asked.
func startMySQL(t *testing.T, l *lab, names ...string) (asked string) {
	t.Helper()
	dir := databaseDir(t, l, names...)
	if out, err := asNobody(t, dir, mariaTool(t, "mariadb-install-db"), "--no-defaults", "--datadir="+dir+"/data",
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve").CombinedOutput(); err != nil {
		t.Fatalf("mariadb-install-db: %v\n%s", err, out)
	}
	must(t, os.WriteFile(dir+"/init", []byte("CREATE USER work@'127.0.0.1' IDENTIFIED BY 'sesame';\n"), 0o644))
	port := freePort(t)
	cmd := asNobody(t, dir, mariaTool(t, "mariadbd"), "--no-defaults", "--datadir="+dir+"/data", "--socket="+dir+"/socket", "--pid-file="+dir+"/pid",
		"--bind-address=127.0.0.1", "--port="+port, "--skip-name-resolve", "--init-file="+dir+"/init", "--max-allowed-packet=64M",
		"--ssl-cert="+dir+"/cert", "--ssl-key="+dir+"/key", "--general-log", "--general-log-file="+dir+"/asked")
	startDatabase(t, l, cmd, "ready for connections", syscall.SIGKILL)
	l.setOrigin("db.test:3306", "127.0.0.1:"+port)
	return dir + "/asked"
}

// bridge listens on loopback and carries what comes by open, as the sandbox's own
// bridge does for programs that know no proxy. It returns its port.
func (l *lab) bridge(t *testing.T, open func(context.Context, string) (net.Conn, error), hostport string) string {
	t.Helper()
	addr := serveConns(t, func() {}, func(c net.Conn) {
		up, err := open(t.Context(), hostport)
		if err != nil {
			return
		}
		defer up.Close()
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = io.Copy(up, c)
			up.Close()
		}()
		_, _ = io.Copy(c, up)
		c.Close()
		<-sent
	})
	_, port, err := net.SplitHostPort(addr.String())
	must(t, err)
	return port
}

// TestMySQL is MariaDB's client against a real server, which speaks first, by a tcp
// rule: redirected and by CONNECT, in the clear, with TLS that begins inside and
// that the client verifies itself, many rows, and refused.
func TestMySQL(t *testing.T) {
	l := newLab(t, func(c *proxy.Config) { c.Timeouts.Peek = time.Minute }) // longer than the client waits for a greeting
	l.setPolicy(mysqlPolicy)
	vip, _, err := net.SplitHostPort(l.vip("db.test:3306"))
	must(t, err)
	asked := startMySQL(t, l, vip, "localhost")
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.origin.cert.Raw}), 0o600))
	for _, door := range []struct {
		name string
		host func(name string) (host, port string)
	}{
		{"transparent", func(name string) (host, port string) {
			host, port, err := net.SplitHostPort(l.vip(name + ":3306"))
			must(t, err)
			return host, port
		}},
		{"connect", func(name string) (host, port string) { return "localhost", l.bridge(t, l.connect, name+":3306") }},
		{"connect over h2", func(name string) (host, port string) { return "localhost", l.bridge(t, l.connect2, name+":3306") }},
	} {
		t.Run(door.name, func(t *testing.T) {
			ask := func(name, query string, options ...string) (string, error) {
				host, port := door.host(name)
				cmd := exec.CommandContext(t.Context(), mariaTool(t, "mariadb"), append([]string{
					"--no-defaults", "--protocol=tcp", "--host=" + host, "--port=" + port, "--user=work", "--password=sesame", "--connect-timeout=10",
					"--batch", "--skip-column-names", "--execute=" + query,
				}, options...)...)
				out, err := cmd.CombinedOutput()
				return strings.TrimSpace(string(out)), err
			}
			l.testMySQL(t, ask, asked, roots, strings.ReplaceAll(door.name, " ", "-"))
		})
	}
}

// testMySQL asks a database by one way; word is in queries, to tell who asked.
func (l *lab) testMySQL(t *testing.T, ask func(name, query string, options ...string) (string, error), asked, roots, word string) {
	t.Helper()
	verified := []string{"--ssl-ca=" + roots, "--ssl-verify-server-cert"}
	for _, tt := range []struct {
		name, query, want string
		options           []string
	}{
		{"in the clear", "select 6 * 7, '" + word + " clear'", "42\t" + word + " clear", []string{"--skip-ssl"}},
		{"not TLS then", "show status like 'Ssl_version'", "Ssl_version", []string{"--skip-ssl"}},
		{"TLS, verified by the client", "show status like 'Ssl_version'", "Ssl_version\tTLSv1.3", verified},
		{"a row of 20 MB", "select length(repeat('x', 20000000)), '" + word + " long'", "20000000\t" + word + " long", verified},
	} {
		got, err := ask("db.test", tt.query, tt.options...)
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
		records := l.log.await(t, 2)
		if len(records) != 2 || records[0].Kind != audit.Admit || records[0].Rule != "db" || records[1].Kind != audit.Done ||
			records[1].Sent == 0 || records[1].Received == 0 {
			t.Errorf("%s: records %+v", tt.name, records)
		}
	}
	got, err := ask("db.test", "select repeat('x', 20000000)", "--skip-ssl", "--max-allowed-packet=64M")
	if err != nil || len(got) != 20_000_000 {
		t.Errorf("20 MB: %d octets, %v", len(got), err)
	}
	if records := l.log.await(t, 2); len(records) != 2 || records[1].Received < 20_000_000 {
		t.Errorf("20 MB: records %+v", records)
	}
	l.dialled()

	got, err = ask("evil.test", "select '"+word+" evil'", "--skip-ssl")
	// The connection is reset, before or after the client has seen it made.
	reset := strings.Contains(got, "ERROR 2013") || strings.Contains(got, "ERROR 2002")
	if err == nil || !reset || strings.Contains(got, strconv.Itoa(int(syscall.ETIMEDOUT))) {
		t.Errorf("a host that no rule names: %q, %v, want a refusal at once", got, err)
	}
	wantRefusal(t, l, "host_not_allowed")
	wantNothingDialled(t, l)
	heard, err := os.ReadFile(asked)
	must(t, err)
	for what, want := range map[string]bool{"clear": true, "long": true, "evil": false} {
		if query := fmt.Sprintf("'%s %s'", word, what); strings.Contains(string(heard), query) != want {
			t.Errorf("the server was asked %s: %t, want %t", query, !want, want)
		}
	}
}
