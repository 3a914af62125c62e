package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/deploy"
	"sallyport/test/lab"
)

//go:embed demo/agent.py
var demoAgent []byte

//go:embed demo/neighbour.py
var demoNeighbour []byte

//go:embed demo/policy.yaml
var demoPolicy []byte

//go:embed demo/quiet.yaml
var demoQuiet []byte

//go:embed demo/credential.yaml
var demoCredential []byte

// demoInstance has directories and a namespace of its own, so that a demo
// disturbs no installation on the same machine.
const demoInstance = "sallyport-demo"

func newDemo() *cobra.Command {
	var inside bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job end to end on this machine, with a small internet of its own",
		Long: `Demo starts a lab of upstream servers in a network namespace without uplink, then the
gateway and the broker, and runs a Python agent in a real container. The agent does its work
and then tries every way out it can think of. Each claim is checked on both sides: what the
agent saw, and what the servers saw. The exit code is not zero if one does not hold.`,
		Example: "  sallyport demo",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := mustRoot("demo"); err != nil {
				return err
			}
			if !inside {
				return demoOutside(c)
			}
			d := &demo{out: c.OutOrStdout(), err: c.ErrOrStderr()}
			return d.run(c.Context())
		},
	}
	c.Flags().BoolVar(&inside, "inside", false, "already in the lab's network namespace")
	_ = c.Flags().MarkHidden("inside") // it exists: set one line above
	return c
}

// demoOutside starts the demo again in a network namespace that has no uplink.
// Whatever the product does wrong, no packet leaves this machine.
func demoOutside(c *cobra.Command) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	cmd := exec.Command(self, "demo", "--inside") //nolint:noctx // it is told to stop, and cleans up
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, c.OutOrStdout(), c.ErrOrStderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the demo in a network namespace of its own: %w", err)
	}
	stop := context.AfterFunc(c.Context(), func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	return childError(cmd.Wait())
}

// childError passes a child's exit code on; it has said why itself.
func childError(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &exitError{code: max(exit.ExitCode(), exitFailed)}
	}
	return err
}

// demo is one run of the demo, inside the lab's namespace.
type demo struct {
	out, err io.Writer
	logs     bytes.Buffer // what the daemons say; shown if something fails
	dir      string
	lab      *lab.Lab
	failed   []string
}

// run does the whole of it and undoes it.
func (d *demo) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "sallyport-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // below the temporary directory
	d.dir = dir
	if err := os.Chmod(dir, 0o711); err != nil { // the broker reads its secret below
		return err
	}
	d.title("starting a small internet in a namespace without uplink")
	if d.lab, err = lab.Start(ctx, lab.Config{Dir: dir}); err != nil {
		return fmt.Errorf("starting the lab: %w", err)
	}
	defer d.lab.Close() //nolint:errcheck // the namespace ends with it
	if err := d.files(); err != nil {
		return err
	}
	d.title("sallyport up")
	stop, err := d.up(ctx)
	if err != nil {
		return err
	}
	err = errors.Join(d.show(ctx), stop())
	if err == nil {
		err = d.verdict()
	}
	if err != nil { // stop has waited for the daemons: their log is whole
		fmt.Fprintf(d.err, "\nwhat the daemons said:\n%s\n", &d.logs)
	}
	return err
}

// show runs the agent beside a neighbour and checks what both sides saw.
func (d *demo) show(ctx context.Context) error {
	if err := d.loadImage(ctx); err != nil {
		return err
	}
	neighbour, end, err := d.neighbour(ctx)
	if err != nil {
		return err
	}
	defer end()
	d.title("sallyport run -p policy.yaml --code agent.py " + demoImage + " work")
	result, err := d.agent(ctx, neighbour, "work")
	if err != nil {
		return err
	}
	d.title("sallyport run -p policy.yaml --code agent.py " + demoImage + " scan")
	scan, err := d.agent(ctx, neighbour, "scan")
	if err != nil {
		return err
	}
	d.title("what the servers saw")
	d.checkLab()
	d.title("the run's result")
	if err := d.printResult(result); err != nil {
		return err
	}
	d.title("sallyport audit query --run " + result.Run)
	if err := d.command(ctx, "audit", "query", "--run", result.Run); err != nil {
		return err
	}
	if err := d.checkRecords(ctx, result, scan); err != nil {
		return err
	}
	d.title("sallyport audit verify")
	return d.command(ctx, "audit", "verify")
}

// title prints a step, so that a person sees how far it is.
func (d *demo) title(s string) { fmt.Fprintf(d.out, "\n== %s\n", s) }

// claim prints one checked claim.
func (d *demo) claim(what string, ok bool, saw any) {
	word := "ok  "
	if !ok {
		word = "FAIL"
		d.failed = append(d.failed, what)
	}
	fmt.Fprintf(d.out, "%s %-48s %v\n", word, what, saw)
}

func (d *demo) verdict() error {
	if len(d.failed) > 0 {
		return fmt.Errorf("the demo failed: %s", strings.Join(d.failed, "; "))
	}
	fmt.Fprintln(d.out, "\nevery claim held: the work was done, nothing else got out, and the log says so")
	return nil
}

// cmd prepares a call of this very program.
func (d *demo) cmd(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{"--instance", demoInstance}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	cmd.Stdout, cmd.Stderr = d.out, d.err
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, nil
}

// command runs one command of this program and shows what it prints.
func (d *demo) command(ctx context.Context, args ...string) error {
	cmd, err := d.cmd(ctx, args...)
	if err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("sallyport %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// up starts the supervisor and returns when it says that it is up.
func (d *demo) up(ctx context.Context) (stop func() error, err error) {
	cmd, err := d.cmd(context.WithoutCancel(ctx), "up", "--config", filepath.Join(d.dir, "config.yaml"), "--credentials", filepath.Join(d.dir, "credentials"))
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = pw, &d.logs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		pw.CloseWithError(io.EOF)
		ended <- err
	}()
	ready := make(chan bool, 1)
	go d.follow(pr, ready)
	stop = func() error {
		d.title("^C")
		return errors.Join(cmd.Process.Signal(syscall.SIGTERM), <-ended)
	}
	select {
	case ok := <-ready:
		if ok {
			return stop, nil
		}
		err := <-ended
		return nil, fmt.Errorf("sallyport up: %w\n%s", err, &d.logs)
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), stop())
	}
}

// follow copies what up prints and tells when it is ready, or that it ended.
func (d *demo) follow(r io.Reader, ready chan<- bool) {
	told := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fmt.Fprintln(d.out, lines.Text())
		if !told && strings.Contains(lines.Text(), " is up;") {
			told = true
			ready <- true
		}
	}
	if !told {
		ready <- false
	}
}

func (d *demo) loadImage(ctx context.Context) error {
	archive, err := deploy.Image("sandbox")
	if err != nil {
		return hint(err, "make setup")
	}
	d.title("sallyport image load " + archive)
	return d.command(ctx, "image", "load", "--if-missing", demoImage, archive)
}

// neighbour starts a second sandbox that greets whoever reaches it, and
// returns its address. end stops it.
func (d *demo) neighbour(ctx context.Context) (addr string, end func(), err error) {
	d.title("a neighbour: another sandbox that listens and must not be found")
	cmd, err := d.cmd(ctx, "run", "-p", filepath.Join(d.dir, "quiet.yaml"), "--timeout", "10m", "--code", filepath.Join(d.dir, "neighbour.py"), demoImage)
	if err != nil {
		return "", nil, err
	}
	pr, pw := io.Pipe()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = pw, &said
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is ended by a signal: its code says nothing
		pw.CloseWithError(io.EOF)
		close(ended)
	}()
	end = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		<-ended
	}
	line, err := bufio.NewReader(pr).ReadString('\n')
	go func() { _, _ = io.Copy(io.Discard, pr) }()
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		end()
		return "", nil, fmt.Errorf("the neighbour did not start: it said %q\n%s", line, &said)
	}
	fmt.Fprintln(d.out, "it listens on every one of its ports at", addr)
	return addr, end, nil
}

// files writes what a person would have in /etc/sallyport.
func (d *demo) files() error {
	who, err := lookupAccounts()
	if err != nil {
		return err
	}
	secret := filepath.Join(d.dir, "secrets", "api-token")
	fill := strings.NewReplacer("@SECRET@", secret, "@API@", lab.APIName, "@FILES@", lab.FilesName).Replace
	for name, text := range map[string]string{
		"config.yaml":               d.config(),
		"policy.yaml":               fill(string(demoPolicy)),
		"quiet.yaml":                fill(string(demoQuiet)),
		"agent.py":                  string(demoAgent),
		"neighbour.py":              string(demoNeighbour),
		"credentials/demo-api.yaml": fill(string(demoCredential)),
		"secrets/api-token":         d.lab.Token,
	} {
		path := filepath.Join(d.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(os.Chown(secret, who.broker.uid, who.broker.gid), os.Chmod(secret, 0o400))
}

// config is the gateway's configuration: where the lab's names live, and whom
// to trust there.
func (d *demo) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: sallyport/v1\nkind: Gateway\nupstream_ca: [%s]\nhosts:\n", d.lab.CAFile)
	for name, addrs := range d.lab.Hosts() {
		for i, a := range addrs {
			addrs[i] = a.Unmap()
		}
		fmt.Fprintf(&b, "  %s: [%s]\n", name, joinAddrs(addrs))
	}
	return b.String()
}

// agent runs the agent and returns the structured result of its run.
func (d *demo) agent(ctx context.Context, neighbour, what string) (*demoResult, error) {
	facts, err := json.Marshal(d.facts(neighbour))
	if err != nil {
		return nil, err
	}
	file := filepath.Join(d.dir, what+".json")
	cmd, err := d.cmd(ctx, "run", "-p", filepath.Join(d.dir, "policy.yaml"), "-e", "DEMO="+string(facts),
		"--code", filepath.Join(d.dir, "agent.py"), "--result", file, demoImage, what)
	if err != nil {
		return nil, err
	}
	var seen bytes.Buffer
	cmd.Stdout = io.MultiWriter(d.out, &seen)
	err = cmd.Run()
	d.claim("the agent's own expectations held: "+what, err == nil && !strings.Contains(seen.String(), "FAIL"), "exit code passed through")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the run's result: %w", err)
	}
	r := &demoResult{raw: data}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading the run's result: %w", err)
	}
	leak := strings.Contains(seen.String(), d.lab.Token) || bytes.Contains(data, []byte(d.lab.Token))
	d.claim("no secret in the output or the result", !leak, "searched for the real one")
	return r, nil
}

// demoResult is what the demo reads of a result.
type demoResult struct {
	Run     string `json:"run"`
	Denials []struct {
		Reason string `json:"reason"`
		What   string `json:"what"`
	} `json:"denials"`
	Denied int `json:"denied"`
	raw    []byte
}

func (d *demo) printResult(r *demoResult) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.raw, &fields); err != nil {
		return err
	}
	delete(fields, "output")  // it was shown as it came
	delete(fields, "denials") // shown as a table
	if err := printJSON(d.out, fields); err != nil {
		return err
	}
	d.title("the reason of each refusal")
	rows := [][]string{{"REASON", "WHAT"}}
	for _, n := range r.Denials {
		rows = append(rows, []string{n.Reason, n.What})
	}
	return printTable(d.out, rows)
}
