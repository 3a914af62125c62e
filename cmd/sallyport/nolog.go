package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"sallyport/control"
	"sallyport/control/durable"
)

// noLogTurn is how long a gateway without a log tells so before it tries again.
const noLogTurn = time.Second

// openWithLog is openGateway where the log may not open: its disk is full, its key or its
// directory gone, or it is not what was signed. A gateway that begins there, because the one
// before died, cannot record and so admits nothing; until it can it stays and says why, to
// commands and to whoever watches over it.
func openWithLog(ctx context.Context, inst instance, o logOptions, ctl net.Listener, log *slog.Logger) (*gateway, error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	g, cause := openGateway(ctx, inst, o, log)
	if !withoutLog(cause) {
		return g, cause
	}
	log.Error("nothing is let through until the log can be written", "cause", cause, "dir", inst.auditDir())
	err := serveAll(
		ctx,
		func(ctx context.Context) error { return tellNoLog(ctx, ctl, cause) },
		func(ctx context.Context) error {
			for err := cause; ; {
				if turnErr := unreadyTurn(ctx, inst, cause); turnErr != nil || ctx.Err() != nil {
					return errors.Join(err, turnErr)
				}
				if g, err = openGateway(ctx, inst, o, log); !withoutLog(err) {
					return err
				}
			}
		},
	)
	if err != nil && g != nil {
		g.close()
		g = nil
	}
	return g, err
}

// noLogError says why the log does not open.
type noLogError struct{ error }

func (e *noLogError) Unwrap() error { return e.error }

// withoutLog reports an error that may end without this process: of the log, or of a disk
// that others need too.
func withoutLog(err error) bool {
	_, ok := errors.AsType[*noLogError](err)
	return ok || durable.NoRoom(err)
}

// tellNoLog answers every call with why nothing can be recorded. It has no turns:
// a call that came at the end of one would meet a server that hangs up.
func tellNoLog(ctx context.Context, ctl net.Listener, cause error) error {
	again, err := sameListener(ctl)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", control.Handle(rootOnly, func(context.Context, json.RawMessage) (empty, error) {
		return empty{}, &control.Error{Status: http.StatusServiceUnavailable, Text: "the log cannot be written, so nothing is let through: " + cause.Error()}
	}))
	return serveHTTP(ctx, control.NewServer(mux), again)
}

// unreadyTurn tells those who ask /readyz why nothing can be recorded, for a turn:
// a gateway that opens listens there itself.
func unreadyTurn(ctx context.Context, inst instance, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, noLogTurn)
	defer cancel()
	cfg, err := loadGatewayConfig(inst.run("config.yaml"))
	if err != nil {
		return err
	}
	l, err := listenHealth(ctx, cfg.Metrics)
	if err != nil {
		return err
	}
	if l == nil {
		<-ctx.Done()
		return nil
	}
	h := healthHandler(newMetrics(func() int { return 0 }, func() error { return cause }), func() error { return cause })
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10}
	return serveHTTP(ctx, s, l)
}

// sameListener returns a listener on the same socket, which can be closed by itself.
func sameListener(l net.Listener) (net.Listener, error) {
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, fmt.Errorf("the control socket is a %T", l)
	}
	f, err := u.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileListener(f)
}

// explainNoLog says what helps where the gateway cannot record.
func explainNoLog(inst instance, err error) error {
	if refusal, ok := errors.AsType[*control.Error](err); ok && refusal.Status == http.StatusServiceUnavailable {
		return hint(err, "%s", mendLog(inst, refusal.Text))
	}
	return err
}

func makeRoom(inst instance) string {
	return fmt.Sprintf("df -h %s: make room there, egress resumes by itself", inst.auditDir())
}

// mendLog says what helps where the log cannot be written for a reason that the gateway
// told.
func mendLog(inst instance, why string) string {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(why, full.Error()) {
			return makeRoom(inst)
		}
	}
	return fmt.Sprintf("ls -la %s: put right what is said, egress resumes by itself", inst.auditDir())
}
