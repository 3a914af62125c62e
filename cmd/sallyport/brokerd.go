package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/broker"
	"sallyport/broker/source"
	"sallyport/broker/store"
	"sallyport/control"
)

func newBroker() *cobra.Command {
	return daemonCommand("broker", "The broker process; started by up", runBroker)
}

// runBroker serves until ctx ends, as a user of its own and without capabilities.
func runBroker(ctx context.Context, inst instance, log *slog.Logger) error {
	if err := dropPrivileges(); err != nil {
		return err
	}
	// Little lives here, and all of it is locked into memory: no ballast.
	debug.SetGCPercent(400)
	switch err := broker.Harden(); {
	case errors.Is(err, broker.ErrNotLocked):
		log.Warn("secrets may reach swap", "cause", err)
	case err != nil:
		return err
	}
	f := os.NewFile(fdControl, "control")
	l, err := net.FileListener(f)
	if err != nil {
		return hint(fmt.Errorf("taking over the control socket (descriptor %d): %w", fdControl, err), "start it with: sallyport up")
	}
	_ = f.Close() // the listener has a descriptor of its own
	who, err := lookupAccounts()
	if err != nil {
		return err
	}
	way, err := openDoor(inst, log)
	if err != nil {
		return err
	}
	defer way.dialer.Close()
	reread := func() (c broker.Config, err error) {
		if c.Credentials, err = loadCredentials(inst.credentials()); err == nil {
			c.Transport, err = way, way.allow(c.Credentials)
		}
		return c, err
	}
	cfg, err := reread()
	if err != nil {
		return err
	}
	s, err := broker.NewServer(broker.Config{
		Credentials: cfg.Credentials, Transport: way, Reread: reread, Revoked: inst.isRevoked, Generation: inst.generation, GatewayUID: uint32(who.gateway.uid), AdminUID: 0, CellsDir: inst.cells(),
		Keep: keeper(inst.store(who), who), UID: uint32(who.broker.uid), User: brokerUser, LookupEnv: os.LookupEnv, Now: time.Now, Log: log,
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	var refreshing sync.WaitGroup
	defer refreshing.Wait()
	refreshing.Go(func() { s.Refresh(ctx) })
	return serveHTTP(ctx, control.NewServer(s.Handler()), l)
}

// keeper returns where what servers give in place of secrets is kept.
func keeper(s store.Store, who accounts) func(string) broker.Keeper {
	cfg := source.Config{UID: uint32(who.broker.uid), User: brokerUser, Now: time.Now}
	return func(credential string) broker.Keeper { return s.Rotated(credential, cfg) }
}
