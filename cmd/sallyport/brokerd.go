package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/broker"
	"sallyport/broker/sign"
	"sallyport/broker/source"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

func newBroker() *cobra.Command {
	return daemonCommand("broker", "The broker process; started by up", runBroker)
}

// runBroker serves until ctx ends, as a user of its own and without capabilities.
func runBroker(ctx context.Context, inst instance, log *slog.Logger) error {
	if err := dropPrivileges(); err != nil {
		return err
	}
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
	creds, err := loadCredentials(inst.credentials())
	if err != nil {
		return err
	}
	s, err := broker.NewServer(broker.Config{
		Credentials: brokerCredentials(creds), GatewayUID: uint32(who.gateway.uid), AdminUID: 0, CellsDir: inst.cells(),
		UID: uint32(who.broker.uid), User: brokerUser, LookupEnv: os.LookupEnv, Now: time.Now, Log: log,
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	return serveHTTP(ctx, control.NewServer(s.Handler()), l)
}

// brokerCredentials turns files as they are written into what the broker binds.
func brokerCredentials(files []policyfile.Credential) []broker.Credential {
	out := make([]broker.Credential, 0, len(files))
	for _, f := range files {
		c := broker.Credential{
			Name: f.Name, Owner: f.Owner, Where: f.Where,
			Spec:           sign.Spec{Type: string(f.Type), Prefix: f.Prefix, Username: f.Username},
			Source:         source.Spec{File: f.File},
			PlaceholderEnv: f.Env,
		}
		if f.Type == policyfile.Header {
			c.Spec.Header = f.HeaderName
		}
		for _, e := range f.Endpoints {
			c.Endpoints = append(c.Endpoints, broker.Endpoint{
				Host: e.Host, Ports: e.Ports, Methods: e.Methods, Paths: e.Paths,
			})
		}
		out = append(out, c)
	}
	return out
}
