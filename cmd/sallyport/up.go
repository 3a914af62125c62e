package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sallyport/control"
	"sallyport/launcher"
	"sallyport/launcher/cell"
	"sallyport/launcher/nerdctl"
	"sallyport/rules/plural"
	"sallyport/rules/policyfile"
)

// startTimeout bounds how long a daemon may take until it answers.
const startTimeout = 30 * time.Second

func newUp() *cobra.Command {
	o := upOptions{shipFiles: map[string]*string{}}
	c := &cobra.Command{
		Use:   "up",
		Short: "Start the gateway and the broker and keep them running, in the foreground",
		Long: `Up makes the cells' network namespace, opens the listeners inside it, starts a private
containerd if there is none, and starts the gateway and the broker as two users that are
not root. It restarts either if it dies. ^C ends running sandboxes and takes everything down.
While runs go on it follows their policy files, and the credential files: see policy reload.
SIGHUP has it read them all again. A floor is what the organisation denies and limits whatever
a policy says; it is read once, here.`,
		Example: `  sallyport up
  sallyport up --ship otlp=https://collector.example/v1/logs --ship-headers ./headers
  sallyport up --ship syslog=tls://logs.example:6514 --ship-ca ./ca.pem
  sallyport up --config /etc/sallyport/config.yaml --credentials /etc/sallyport/credentials`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, err := instanceOf(c)
			if err != nil {
				return err
			}
			for _, text := range o.ship {
				if _, err := parseCollector(text); err != nil {
					return err
				}
			}
			if err := mustRoot("up"); err != nil {
				return err
			}
			ctx, hup, stop := hangups(c.Context())
			defer stop()
			return up(ctx, inst, o, hup, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	c.Flags().StringVar(&o.config, "config", "", "gateway configuration; default /etc/sallyport/config.yaml if it is there")
	o.log.add(c)
	c.Flags().StringVar(&o.floor, "floor", "", "policy file that every run stands under; default /etc/sallyport/floor.yaml if it is there")
	c.Flags().StringVar(&o.creds, "credentials", "", "directory of credential files; default /etc/sallyport/credentials if it is there")
	c.Flags().StringArrayVar(&o.ship, "ship", nil, "ship records to a collector: otlp=URL or syslog=tls://HOST:PORT; can be repeated")
	for name, file := range map[string]string{"ca": shipCA, "cert": shipCert, "key": shipKey, "headers": shipHeaders} {
		text := map[string]string{
			shipCA: "file with the authority of the collectors' certificates", shipCert: "file with the certificate to show to collectors",
			shipKey: "file with its key", shipHeaders: "file with headers for OTLP, a NAME: VALUE a line",
		}[file]
		o.shipFiles[file] = c.Flags().String("ship-"+name, "", text)
	}
	return c
}

type upOptions struct {
	config, creds, floor string
	log                  logOptions
	ship                 []string           // collectors
	shipFiles            map[string]*string // what goes with them, by its name below run/ship
}

// supervisor is the privileged parent: it makes and hands over, and parses
// nothing that comes from a sandbox.
type supervisor struct {
	inst  instance
	who   accounts
	log   *slog.Logger
	out   io.Writer // for people
	err   io.Writer // for the daemons' logs
	net   *cell.Network
	group group

	credentialDir string // where people put credential files; "" for nowhere

	logArgs []string // of the gateway

	collectors []string // that there is a shipper for; set once
	shipAs     account
	runs       *launcher.Launcher
	cleared    launcher.Report // what an earlier start had left
	ended      []string        // cells whose runs were told to end
}

// up runs until ctx ends; hup has it read again what may change. Everything that
// it made is undone before it returns, also when a step fails.
func up(ctx context.Context, inst instance, o upOptions, hup <-chan struct{}, out, errw io.Writer) error {
	s := newSupervisor(inst, out, errw)
	defer s.group.stop()
	if err := s.start(ctx, o); err != nil {
		return err
	}
	r, err := s.openReloader()
	if err != nil {
		return err
	}
	defer r.close()
	if err := s.announce(); err != nil {
		return err
	}
	err = serveAll(ctx,
		func(ctx context.Context) error { s.watch(ctx); return nil },
		func(ctx context.Context) error { return r.follow(ctx, hup) },
		func(ctx context.Context) error { return serveHTTP(ctx, control.NewServer(r.handler()), r.control) },
	)
	fmt.Fprintln(out, "stopping")
	return err
}

// watchEvery is how long a sandbox may outlive its launcher.
const watchEvery = time.Second

// watch ends what dead launchers left, until ctx ends: a sandbox must not go on
// working, with a credential, when nobody is there to end it in time.
func (s *supervisor) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		dead, err := s.runs.Dead()
		if err == nil && dead {
			var report launcher.Report
			report, err = s.runs.Reconcile(ctx)
			for _, cell := range report.Removed {
				s.log.Warn("a launcher died: its sandbox was ended", "cell", cell)
			}
		}
		if err != nil && ctx.Err() == nil {
			s.log.Error("clearing what a dead launcher left", "cause", err)
		}
	}
}

func newSupervisor(inst instance, out, errw io.Writer) *supervisor {
	return &supervisor{inst: inst, out: out, err: errw, log: slog.New(slog.NewTextHandler(errw, nil)).With("daemon", "up")}
}

// start makes everything, in an order in which each step stands on the ones
// before it. What an earlier start left is cleared last, when its end can be
// recorded; its cells have been without a gateway until then.
func (s *supervisor) start(ctx context.Context, o upOptions) error {
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"looking at this program", func(context.Context) error { _, _, err := thisProgram(); return err }},
		{"looking up users", func(context.Context) (err error) { s.who, err = lookupAccounts(); return err }},
		{"making directories", func(context.Context) error { return s.inst.makeDirs(s.who) }},
		{"locking the instance", s.lock},
		{"reading the configuration", func(context.Context) error { return s.stage(o) }},
		{"looking at the container stack", newEnough},
		{"making the network", s.network},
		{"starting containerd", s.containerd},
		{"starting the broker", s.broker},
		{"starting the shipper", func(ctx context.Context) error { return s.shipper(ctx, o.ship) }},
		{"starting the gateway", s.gateway},
		{"publishing certificate and key", func(ctx context.Context) error { return publish(ctx, s.inst, s.who.group) }},
		{"clearing what an earlier run left", s.reconcile},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// lock makes sure that an instance has one supervisor.
func (s *supervisor) lock(context.Context) error {
	path := s.inst.run("supervisor.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(hint(fmt.Errorf("instance %q is up already (%s is locked)", s.inst.name, path), "%s", s.inst.typed("status")), f.Close())
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		return errors.Join(err, f.Close())
	}
	// Closing gives the lock back. The file stays: removing it would let two
	// processes lock two files of the same name.
	s.group.onStop(func() { _ = errors.Join(s.inst.clearRun(), f.Close()) })
	return nil
}

func writePID(f *os.File) error {
	_, err := fmt.Fprintf(f, "%d\n", os.Getpid())
	return err
}

// network makes or adopts the cells' namespace.
func (s *supervisor) network(ctx context.Context) error {
	n, err := cell.Open(ctx, s.inst.cellConfig())
	if err != nil {
		return err
	}
	s.net = n
	s.group.onStop(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		if err := n.Destroy(ctx); err != nil {
			s.log.Error("removing the network", "cause", err)
		}
	})
	return nil
}

// containerd starts the instance's own, unless one answers already.
func (s *supervisor) containerd(ctx context.Context) error {
	cfg, err := s.inst.engineConfig()
	if err != nil {
		return err
	}
	c, err := nerdctl.StartContainerd(ctx, cfg)
	if err != nil {
		return err
	}
	s.group.onStop(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		if err := c.Stop(ctx); err != nil {
			s.log.Error("stopping containerd", "cause", err)
		}
	})
	return nil
}

// reconcile removes what dead launchers left, and at the end what live ones have.
func (s *supervisor) reconcile(ctx context.Context) error {
	ca, err := os.ReadFile(s.inst.caCert())
	if err != nil {
		return err
	}
	l, err := s.inst.launcher(s.who, s.net, ca, s.log, nil)
	if err != nil {
		return err
	}
	s.runs = l
	s.group.onStop(func() { s.endRuns(context.WithoutCancel(ctx), l) })
	report, err := l.Reconcile(ctx)
	if err != nil {
		return err
	}
	s.cleared = report
	return nil
}

// listen opens a unix socket for a daemon; mode says who may connect.
func (s *supervisor) listen(path string, mode os.FileMode) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close() //nolint:errcheck // its descriptor lives on in f
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	s.group.onStop(func() { _ = errors.Join(f.Close(), os.Remove(path)) })
	return f, errors.Join(os.Chown(path, 0, s.who.group), os.Chmod(path, mode))
}

func (s *supervisor) broker(ctx context.Context) error {
	// The limit is inherited. Secrets should not be swapped out, and the broker
	// has no capability to lock them with; where even root may not lift the
	// limit, the broker warns.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	sock, err := s.listen(s.inst.brokerSocket(), 0o660)
	if err != nil {
		return err
	}
	creds, err := loadCredentials(s.inst.credentials())
	if err != nil {
		return err
	}
	d := s.daemon("broker", s.who.broker, sock)
	d.env = brokerEnv(creds, os.LookupEnv)
	s.group.start(ctx, d)
	return s.ready(ctx, d, s.inst.brokerSocket(), "/v1/credentials")
}

// shipper starts what ships records to collectors. It begins before the gateway
// and ends after it, so that what a log ends with is shipped too.
func (s *supervisor) shipper(ctx context.Context, to []string) error {
	if s.collectors = to; len(to) == 0 {
		return nil
	}
	d := s.daemon("shipper", s.shipAs)
	d.group = append(d.group, s.who.reviewers) // it reads the log
	for _, c := range to {
		d.args = append(d.args, "--to", c)
	}
	s.group.start(ctx, d)
	return nil
}

// brokerEnv is what of the supervisor's environment goes to the broker: just what
// its sources name.
func brokerEnv(creds []policyfile.Credential, lookup func(string) (string, bool)) []string {
	var names []string
	for _, c := range creds {
		switch {
		case c.Source.Env != "":
			names = append(names, c.Source.Env)
		case c.Source.Systemd != "":
			names = append(names, "CREDENTIALS_DIRECTORY")
		}
	}
	slices.Sort(names)
	var env []string
	for _, name := range slices.Compact(names) {
		if v, ok := lookup(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func (s *supervisor) gateway(ctx context.Context) error {
	files := make([]*os.File, 0, 5)
	mode := os.FileMode(0o600)
	if len(s.collectors) > 0 {
		mode = 0o660 // the shipper's reports; who may ask what is checked for each call
	}
	ctl, err := s.listen(s.inst.gatewaySocket(), mode)
	if err != nil {
		return err
	}
	files = append(files, ctl)
	for _, l := range []struct{ network, address string }{
		{"tcp", ":15001"}, {"tcp", ":3128"}, {"tcp", ":53"}, {"udp", ":53"},
	} {
		f, err := s.net.Listen(ctx, l.network, "0.0.0.0"+l.address)
		if err != nil {
			return fmt.Errorf("listening on %s%s: %w", l.network, l.address, err)
		}
		s.group.onStop(func() { _ = f.Close() })
		files = append(files, f)
	}
	d := s.daemon("gateway", s.who.gateway, files...)
	d.args = append(d.args, s.logArgs...)
	s.group.start(ctx, d)
	if err := s.ready(ctx, d, s.inst.gatewaySocket(), "/v1/status"); err != nil {
		return err
	}
	if err := s.inst.tellChanges(ctx); err != nil { // they stay where they are
		s.log.Error("recording what was changed while the gateway was down", "cause", err)
	}
	return nil
}

func (s *supervisor) daemon(name string, who account, files ...*os.File) *daemon {
	return &daemon{
		name: name, args: []string{name, "--instance", s.inst.name}, files: files,
		who: who, group: []int{s.who.group}, log: s.log, out: s.err, ended: make(chan struct{}),
	}
}

// ready waits until a daemon answers. Its socket is open already, so the call
// waits in the queue and nothing has to be tried twice. One that ends before
// it ever answered will not do so the next time either.
func (s *supervisor) ready(ctx context.Context, d *daemon, socket, op string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := control.NewClient(socket)
	defer c.Close()
	answered := make(chan error, 1)
	go func() { answered <- c.Call(ctx, op, empty{}, nil) }()
	var err error
	select {
	case err = <-answered:
	case <-d.ended:
		cancel()
		err = fmt.Errorf("it ended at once: %w", <-answered)
	}
	if err != nil {
		return hint(fmt.Errorf("the %s does not answer: %w", d.name, err), "what it said itself is above")
	}
	return nil
}

// announce tells a person what listens where.
func (s *supervisor) announce() error {
	i := s.inst
	rows := [][]string{
		{"WHAT", "WHERE", "WHO"},
		{"transparent", "tcp :15001, every port of every address is led here", gatewayUser},
		{"explicit proxy", "tcp :3128 of each cell's gateway address", gatewayUser},
		{"DNS", "udp+tcp :53 of any address", gatewayUser},
		{"network namespace", "/run/netns/" + i.name + " (no uplink)", "root"},
		{"gateway control", i.gatewaySocket(), gatewayUser},
		{"broker", i.brokerSocket(), brokerUser},
		{"audit log", i.auditDir(), gatewayUser},
		{"audit public key", i.auditPublicKey(), "root"},
		{"CA certificate", i.caCert(), gatewayUser},
	}
	if n := len(s.cleared.Removed); n > 0 {
		fmt.Fprintf(s.out, "cleared %s that an earlier start left\n", plural.Count(n, "thing"))
	}
	if err := printTable(s.out, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "sallyport %s is up; ^C ends it\n", i.name)
	return err
}
