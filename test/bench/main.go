// Command bench measures the gateway against reference proxies that do the
// least that a proxy can do, in turn and in one run, and prints the ratios.
//
//	bench [-rounds 5] [-d 700ms] [-only REGEXP] [-dir DIR]
//	bench soak [-for 5m] [-rate 0] [-large 10] [-dir DIR]
//
// The second measures nothing but whether the gateway stays as it is: see soak.go.
// It starts itself again for every part: an origin, the references (see
// ref.go), the gateway wired as in production (policy of 100 rules, log, CA,
// dialler, DNS) and the broker that holds the one credential. Each can be
// started by hand, for another load generator:
//
//	bench pki     -dir DIR
//	bench origin  -dir DIR -addr 127.7.7.7
//	bench broker  -dir DIR
//	bench gateway -dir DIR -listen 127.0.0.1:3128 -broker
//	bench ref     -dir DIR -listen 127.0.0.1:3200 -mode raw|mitm|stdlib|dns
//
// Nothing listens or dials outside 127.0.0.0/8. Only ratios carry over to
// other machines; differences under about 15 % mean nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
)

// The names of the origin. What each may be used for is in policyText.
const (
	inspectedHost = "origin.perf.test" // terminated, with a credential
	passedHost    = "pass.perf.test"   // TLS that is passed through
	rawHost       = "raw.perf.test"    // any bytes
	openHost      = "open.perf.test"   // terminated, without a credential
	coldZone      = "cold.test"        // terminated; names below it are new each time
	originAddr    = "127.7.7.7"
	plainPort     = "8080"
	tlsPort       = "8443"
)

func main() {
	roles := map[string]func(context.Context, []string) error{
		"run": runBench, "soak": runSoak, "pki": runPKI, "origin": runOrigin, "broker": runBroker, "gateway": runGateway, "ref": runRef,
	}
	role, args := "run", os.Args[1:]
	if len(args) > 0 && roles[args[0]] != nil {
		role, args = args[0], args[1:]
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := roles[role](ctx, args)
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench %s: error: %v\n", role, err)
		os.Exit(1)
	}
}

// loopback refuses every address that is not on it.
func loopback(addrPort string) error {
	a, err := netip.ParseAddrPort(addrPort)
	if err != nil {
		return err
	}
	if !a.Addr().IsLoopback() {
		return fmt.Errorf("%v is not on loopback", a)
	}
	return nil
}
