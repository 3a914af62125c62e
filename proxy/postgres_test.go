package proxy_test

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sallyport/audit"
)

// nobody is whom the database runs as: it refuses to run as root.
const nobody = 65534

// postgresTool returns a program of the PostgreSQL server.
func postgresTool(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/var/cache/sallyport/postgresql"} {
		found, err := filepath.Glob(dir + "/usr/lib/postgresql/*/bin/" + name)
		must(t, err)
		if len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Fatalf("no %s: run deploy/setup.sh clients", name)
	return ""
}

// startPostgres starts a real server with TLS that is raw.test:5432.
func startPostgres(t *testing.T, l *lab) {
	t.Helper()
	dir := databaseDir(t, l, "raw.test")
	run := func(name string, args ...string) *exec.Cmd { return asNobody(t, dir, postgresTool(t, name), args...) }
	if out, err := run("initdb", "-D", dir+"/data", "-U", "postgres", "-A", "trust", "--no-sync").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	port := freePort(t)
	cmd := run("postgres", "-D", dir+"/data", "-h", "127.0.0.1", "-p", port, "-F", "-c", "unix_socket_directories=",
		"-c", "ssl=on", "-c", "ssl_cert_file="+dir+"/cert", "-c", "ssl_key_file="+dir+"/key")
	startDatabase(t, l, cmd, "ready to accept connections", syscall.SIGQUIT) // immediate shutdown
	l.setOrigin("raw.test:5432", "127.0.0.1:"+port)
}

// databaseDir makes a directory of nobody's with a certificate and a key for names.
func databaseDir(t *testing.T, l *lab, names ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sp-database-") //nolint:usetesting // nobody has to get there, past directories of root's
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	leaf := l.origin.leaf(t, names...)
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	must(t, err)
	must(t, os.WriteFile(dir+"/cert", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), 0o600))
	must(t, os.WriteFile(dir+"/key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	for _, f := range []string{"", "/cert", "/key"} {
		must(t, os.Chown(dir+f, nobody, nobody))
	}
	return dir
}

// asNobody is a command that runs in dir and ends with the test.
func asNobody(t *testing.T, dir, path string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// startDatabase starts a server and waits until it says that it is ready; quit ends it.
func startDatabase(t *testing.T, l *lab, cmd *exec.Cmd, isReady string, quit os.Signal) {
	t.Helper()
	said, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	ready, ended := make(chan struct{}), make(chan struct{})
	var first sync.Once
	var words strings.Builder
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			words.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), isReady) {
				first.Do(func() { close(ready) })
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.stop()
		_ = cmd.Process.Signal(quit)
		<-ended
		_ = cmd.Wait()
	})
	select {
	case <-ready:
	case <-ended:
		t.Fatalf("the database ended at once:\n%s", words.String())
	}
}

// freePort returns a port of loopback that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	must(t, err)
	return port
}

// TestPostgreSQL is psql against a real server by a tcp rule: in the clear, with
// TLS inside that the client verifies itself, many rows, and refused.
func TestPostgreSQL(t *testing.T) {
	l := newLab(t)
	startPostgres(t, l)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.origin.cert.Raw}), 0o600))
	psql := func(host, options, query string) (string, error) {
		addr, port, err := net.SplitHostPort(l.vip(host + ":5432"))
		must(t, err)
		cmd := exec.CommandContext(t.Context(), "psql", "-XAt", "-c", query,
			fmt.Sprintf("host=%s hostaddr=%s port=%s user=postgres dbname=postgres connect_timeout=10 %s", host, addr, port, options))
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	tests := []struct{ name, options, query, want string }{
		{"in the clear", "sslmode=disable", "select 6 * 7", "42"},
		{"TLS, verified by the client", "sslmode=verify-full sslrootcert=" + roots, "select ssl from pg_stat_ssl where pid = pg_backend_pid()", "t"},
		{"many rows", "sslmode=disable", "select sum(length(x)) from (select repeat('x', 1000) x from generate_series(1, 100)) y", "100000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := psql("raw.test", tt.options, tt.query); err != nil || got != tt.want {
				t.Errorf("psql: %q, %v, want %q", got, err, tt.want)
			}
			got := l.log.await(t, 2)
			if len(got) != 2 || got[0].Kind != audit.Admit || got[0].Rule != "raw" || got[1].Kind != audit.Done ||
				got[1].Sent == 0 || got[1].Received == 0 {
				t.Errorf("records %+v", got)
			}
		})
	}
	out, err := psql("raw.test", "sslmode=disable", "select repeat('x', 1000) from generate_series(1, 20000)")
	if want := 20000*1001 - 1; err != nil || len(out) != want {
		t.Errorf("20 MB of rows: %d octets, %v, want %d", len(out), err, want)
	}
	l.log.await(t, 2)

	out, err = psql("evil.test", "sslmode=disable", "select 1")
	if err == nil || strings.Contains(out, "timeout") {
		t.Errorf("a host that no rule names: %q, %v, want a refusal at once", out, err)
	}
	if got := l.log.await(t, 1); len(got) != 1 || got[0].Reason != "host_not_allowed" {
		t.Errorf("records %+v", got)
	}
}
