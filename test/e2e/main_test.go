// Package e2e_test runs the whole product as a user would: the built binary,
// two daemons, real containers, against the lab's servers, in a network
// namespace without uplink. What the lab saw is the judge.
package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"

	"sallyport/deploy"
	"sallyport/test/lab"
)

const (
	instance    = "sp-e2e"
	other       = "sp-e2e-other" // that a test takes up and down, and breaks
	image       = "sallyport/sandbox:latest"
	metricsAddr = "127.0.0.1:19464"
	downName    = "down.acme.test" // allowed, and nothing listens there
)

// world is what all tests share: a lab and an installation beside it.
type world struct {
	dir string
	bin string
	lab *lab.Lab
	up  *process
	// reader is whom kept messages are encrypted to.
	reader *age.X25519Identity
}

var w world

func TestMain(m *testing.M) { os.Exit(lab.Main(runner{m})) }

// runner sets the world up around the tests.
type runner struct{ m *testing.M }

// Run implements what lab.Main wants.
func (r runner) Run() int {
	code, err := r.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "setting up:", err)
		return 1
	}
	return code
}

// forget removes what a run of these tests that was ended left of an instance:
// its log would be told from the one that its key last signed.
func forget(inst string) error {
	state := filepath.Join("/var/lib", inst)
	_ = syscall.Unmount(filepath.Join(state, "audit"), 0) // as a rule nothing is mounted there
	return errors.Join(os.RemoveAll(state), os.RemoveAll(filepath.Join("/run", inst)))
}

func (r runner) run() (code int, err error) {
	w.dir, err = os.MkdirTemp("", "sallyport-e2e-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(w.dir)
	if err := os.Chmod(w.dir, 0o711); err != nil {
		return 0, err
	}
	if w.reader, err = age.GenerateX25519Identity(); err != nil {
		return 0, err
	}
	home := filepath.Join(w.dir, "root") // where only root may look, as in its home directory
	if err := os.Mkdir(home, 0o700); err != nil {
		return 0, err
	}
	w.bin = filepath.Join(home, "sallyport")
	build := exec.Command("go", "build", "-o", w.bin, "sallyport/cmd/sallyport")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("building: %w\n%s", err, out)
	}
	labDir := filepath.Join(w.dir, "lab")
	if err := os.Mkdir(labDir, 0o755); err != nil {
		return 0, err
	}
	if w.lab, err = lab.Start(context.Background(), lab.Config{Dir: labDir}); err != nil {
		return 0, err
	}
	defer w.lab.Close()
	if err := writeFiles(); err != nil {
		return 0, err
	}
	if err := forget(other); err != nil {
		return 0, err
	}
	if w.up, err = startUpWith(instance, filepath.Join(w.dir, "measured.yaml"), "--capture-recipient", w.reader.Recipient().String()); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.up.stop()) }()
	if err := loadImage(instance); err != nil {
		return 0, err
	}
	return r.m.Run(), nil
}

func loadImage(instance string) error {
	archive, err := deploy.Image("sandbox")
	if err != nil {
		return err
	}
	if out, err := commandOf(instance, "image", "load", "--if-missing", image, archive).CombinedOutput(); err != nil {
		return fmt.Errorf("loading the image: %w\n%s", err, out)
	}
	return nil
}

// writeFiles writes what a person would have in /etc/sallyport.
func writeFiles() error {
	var hosts strings.Builder
	for name, addrs := range w.lab.Hosts() {
		fmt.Fprintf(&hosts, "  %s: [%s]\n", name, joinAddrs(addrs))
	}
	secret := filepath.Join(w.dir, "token")
	files := map[string]string{
		"config.yaml": "apiVersion: sallyport/v1\nkind: Gateway\nupstream_ca: [" + w.lab.CAFile + "]\nhosts:\n" + hosts.String() +
			"  " + downName + ": [11.7.7.99]\n",
		"credentials/lab-api.yaml": fmt.Sprintf(`apiVersion: sallyport/v1
kind: Credential
metadata: {name: lab-api, owner: tests}
type: bearer
endpoints: [{host: %s, ports: [443], methods: [GET, POST], paths: ["/v1/**"]}]
source: {file: %s}
placeholder: {env: API_TOKEN}
`, lab.APIName, secret),
		"policy.yaml": fmt.Sprintf(`apiVersion: sallyport/v1
kind: Policy
metadata: {name: e2e, owner: tests, description: what the end-to-end tests may do}
rules:
  - id: api
    reason: the credentialed API
    allow: {host: %s, methods: [GET, POST], paths: ["/v1/**"]}
    credential: lab-api
  - id: files
    reason: a site without a credential
    allow: {host: %s, ports: [80, 443]}
  - id: down
    reason: a site that nobody serves
    allow: {host: %s}
`, lab.APIName, lab.FilesName, downName),
		"nothing.yaml": "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: nothing, owner: tests, description: deny all}\nrules: []\n",
		"token":        w.lab.Token,
	}
	files["measured.yaml"] = files["config.yaml"] + "metrics: " + metricsAddr + "\n"
	for name, text := range files {
		path := filepath.Join(w.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	u, err := user.Lookup("sallyport-broker")
	if err != nil {
		return fmt.Errorf("%w: run make setup", err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	return errors.Join(os.Chown(secret, uid, 0), os.Chmod(secret, 0o400))
}

func joinAddrs(addrs []netip.Addr) string {
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}

// command prepares a call of the product.
func command(args ...string) *exec.Cmd { return commandOf(instance, args...) }

// commandOf is command for another instance. Root's umask is a strict one, and its PATH
// that of the user who became root with su(1).
func commandOf(instance string, args ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", `umask 077; PATH=/usr/local/bin:/usr/bin:/bin; exec "$0" "$@"`, w.bin, "--instance", instance}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// process is a running command whose output is kept.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error

	mu   sync.Mutex // guards out
	out  bytes.Buffer
	seen chan string // lines of standard output as they come
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{}), seen: make(chan string, 4096)}
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = pw, lockedWriter{p}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		lines := bufio.NewScanner(pr)
		for lines.Scan() {
			fmt.Fprintln(lockedWriter{p}, lines.Text())
			p.seen <- lines.Text()
		}
		close(p.seen)
	}()
	go func() {
		p.err = cmd.Wait()
		_ = pw.Close()
		close(p.ended)
	}()
	return p, nil
}

// lockedWriter appends to what a process has said.
type lockedWriter struct{ p *process }

func (l lockedWriter) Write(b []byte) (int, error) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return l.p.out.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// waitLine waits for a line of standard output that contains text.
func (p *process) waitLine(text string, timeout time.Duration) error {
	t := time.NewTimer(timeout)
	defer t.Stop()
	for {
		select {
		case line, ok := <-p.seen:
			if !ok {
				<-p.ended
				return fmt.Errorf("it ended before it said %q: %w\n%s", text, p.err, p.said())
			}
			if strings.Contains(line, text) {
				return nil
			}
		case <-t.C:
			return fmt.Errorf("it did not say %q in %v\n%s", text, timeout, p.said())
		}
	}
}

// stop ends it as ^C would and waits.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-p.ended
	return p.err
}

func startUp(instance string) (*process, error) {
	return startUpWith(instance, filepath.Join(w.dir, "config.yaml"))
}

// startUpWith is startUp with a configuration, and flags of up.
func startUpWith(instance, config string, flags ...string) (*process, error) {
	line := append([]string{"up", "--config", config, "--credentials", filepath.Join(w.dir, "credentials")}, flags...)
	p, err := startProcess(commandOf(instance, line...))
	if err != nil {
		return nil, err
	}
	return p, p.waitLine("is up;", time.Minute)
}

// result is what tests read of a run's structured result.
type result struct {
	Run     string `json:"run"`
	Cell    string `json:"cell"`
	Exit    int    `json:"exit"`
	Cause   string `json:"cause"`
	Denied  int    `json:"denied"`
	Denials []struct {
		Reason string `json:"reason"`
		What   string `json:"what"`
	} `json:"denials"`
	Destroyed bool `json:"destroyed"`
	stdout    string
	stderr    string
	code      int // of the command
}

// sandbox runs a command under policy.yaml and returns what came of it.
func sandbox(t *testing.T, args ...string) result {
	t.Helper()
	return sandboxWith(t, "policy.yaml", nil, args...)
}

// sandboxWith is sandbox with flags of run.
func sandboxWith(t *testing.T, policy string, flags []string, args ...string) result {
	t.Helper()
	file := filepath.Join(t.TempDir(), "result.json")
	line := append([]string{"run", "-p", filepath.Join(w.dir, policy), "--result", file}, flags...)
	cmd := command(append(append(line, image), args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r := result{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("run %v left no result: %v\nstdout: %s\nstderr: %s\nup: %s", args, err, r.stdout, r.stderr, w.up.said())
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	return r
}
