package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// hangups gives SIGHUP the meaning that it has for a service: read again what may
// change. The context ends by the other signals, and when the terminal that this
// process was started at is closed, which is told by the same signal.
func hangups(ctx context.Context) (context.Context, <-chan struct{}, func()) {
	ctx, stop := signal.NotifyContext(context.WithoutCancel(ctx), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	ctx, cancel := context.WithCancel(ctx)
	signals, out := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(signals, syscall.SIGHUP)
	attended := hasTerminal()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			if attended && !hasTerminal() {
				cancel()
				return
			}
			select {
			case out <- struct{}{}:
			default: // one is on its way, and will see everything
			}
		}
	}()
	return ctx, out, func() {
		cancel()
		<-done
		signal.Stop(signals)
		stop()
	}
}

// hasTerminal reports whether this process has a controlling terminal that is
// still there (tty(4)).
func hasTerminal() bool {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}
