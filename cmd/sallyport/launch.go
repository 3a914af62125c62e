package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sallyport/audit"
	"sallyport/broker"
	"sallyport/control"
	"sallyport/deploy"
	"sallyport/launcher"
	"sallyport/launcher/cell"
	"sallyport/launcher/nerdctl"
	"sallyport/proxy"
)

// tools finds the container stack; runsc may be missing until it is asked for.
func tools() (nerdctl.Tools, error) {
	var t nerdctl.Tools
	var errs []error
	for name, path := range map[string]*string{"nerdctl": &t.Nerdctl, "containerd": &t.Containerd, "runc": &t.Runc} {
		found, err := deploy.Find(name)
		*path = found
		errs = append(errs, err)
	}
	if runsc, err := deploy.Find("runsc"); err == nil {
		t.Runsc = runsc
	}
	return t, errors.Join(errs...)
}

// engineConfig says where the instance's containers live.
func (i instance) engineConfig() (nerdctl.Config, error) {
	t, err := tools()
	if err != nil {
		return nerdctl.Config{}, err
	}
	return nerdctl.Config{Instance: i.name, RunDir: i.run(), StateDir: i.state("containerd"), Tools: t}, nil
}

func (i instance) engine() (*nerdctl.Engine, error) {
	cfg, err := i.engineConfig()
	if err != nil {
		return nil, err
	}
	return nerdctl.New(cfg)
}

// cellConfig names the instance's network.
func (i instance) cellConfig() cell.Config { return cell.Config{Name: i.name} }

// launcher wires a launcher to the instance's daemons.
func (i instance) launcher(who accounts, net launcher.Network, ca []byte, log *slog.Logger, progress func(string)) (*launcher.Launcher, error) {
	engine, err := i.engine()
	if err != nil {
		return nil, err
	}
	self, _, err := thisProgram()
	if err != nil {
		return nil, err
	}
	return launcher.New(launcher.Config{
		Instance: i.name, RunDir: i.run(), StateDir: i.state(),
		Network: net, Engine: engine, Gateway: i.gatewayCalls(), Broker: i.brokerCalls(),
		Group: who.group, CA: ca, Guest: self, Now: time.Now, Log: log, Progress: progress,
	})
}

// gatewayCalls are the launcher's calls of the gateway's control socket.
func (i instance) gatewayCalls() launcher.Gateway {
	return launcher.Gateway{
		Ready: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			var st statusOut
			err := callGateway(ctx, i, "/v1/status", empty{}, &st)
			if _, answered := errors.AsType[*control.Error](err); err != nil && !answered {
				return fmt.Errorf("the gateway does not answer: %w", err)
			}
			if err != nil {
				return err
			}
			if st.Ready != "ok" {
				return hint(fmt.Errorf("the gateway cannot write its log: %s", st.Ready), "%s", mendLog(i, st.Ready))
			}
			return nil
		},
		Attach: func(ctx context.Context, id string) error { return callGateway(ctx, i, "/v1/attach", cellIn{id}, nil) },
		Reload: func(ctx context.Context, id string) error { return callGateway(ctx, i, "/v1/reload", cellIn{id}, nil) },
		Detach: func(ctx context.Context, id string) error { return callGateway(ctx, i, "/v1/detach", cellIn{id}, nil) },
		Record: func(ctx context.Context, r audit.Record) error { return callGateway(ctx, i, "/v1/record", r, nil) },
		Denials: func(ctx context.Context, run string) (launcher.Denials, error) {
			var in denialsOut
			if err := callGateway(ctx, i, "/v1/denials", denialsIn{run, maxDenials}, &in); err != nil {
				return launcher.Denials{}, err
			}
			out := launcher.Denials{Count: int(min(in.Count, math.MaxInt32)), More: in.More}
			for _, d := range in.Denials {
				out.Last = append(out.Last, launcher.Denial{Record: d.ID, Time: d.Time, Reason: d.Reason, What: what(d)})
			}
			return out, nil
		},
	}
}

func (i instance) brokerCalls() launcher.Broker {
	return launcher.Broker{
		Grants: func(ctx context.Context, id, run string, names []string) ([]control.Grant, error) {
			var out broker.Grants
			err := callBroker(ctx, i, "/v1/grants", broker.GrantRequest{Cell: id, Run: run, Credentials: names}, &out)
			return out.Grants, err
		},
		Revoke: func(ctx context.Context, id string) error {
			return callBroker(ctx, i, "/v1/revoke", broker.RevokeRequest{Cell: id}, nil)
		},
	}
}

// what says in a few words what was refused.
func what(d proxy.Denied) string {
	words := d.Host
	if d.Port != 0 {
		words = fmt.Sprintf("%s:%d%s", d.Host, d.Port, d.Path)
	}
	if d.Method != "" {
		return d.Method + " " + words
	}
	return words
}

// endRuns asks every launcher that still lives to end its run and waits for
// it. A launcher cleans up after itself; what it cannot, Reconcile does.
func (s *supervisor) endRuns(ctx context.Context, l *launcher.Launcher) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	live, err := l.Live()
	if err != nil {
		s.log.Error("listing the runs", "cause", err)
	}
	for _, r := range live {
		if r.PID == os.Getpid() {
			continue
		}
		fmt.Fprintf(s.out, "ending the run in cell %s\n", r.Cell)
		if err := syscall.Kill(r.PID, syscall.SIGTERM); err != nil {
			s.log.Error("ending a run", "cell", r.Cell, "pid", r.PID, "cause", err)
			continue
		}
		s.ended = append(s.ended, r.Cell)
	}
	if err := l.WaitIdle(ctx); err != nil {
		s.log.Error("a run does not end", "cause", err)
	}
	if _, err := l.Reconcile(ctx); err != nil {
		s.log.Error("clearing what was left", "cause", err)
	}
}

// quiet is a log for commands that report by their own output.
func quiet(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// resultPath makes a path absolute before anything starts.
func resultPath(p string) (string, error) {
	if p == "" {
		return "", nil
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", usage(err)
	}
	if _, err := os.Stat(filepath.Dir(abs)); err != nil {
		return "", usage(fmt.Errorf("result: %w", err))
	}
	return abs, nil
}
