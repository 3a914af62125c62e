package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sallyport/deploy"
	"sallyport/launcher/cell"
)

func newDoctor() *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check that this machine has what Sallyport needs, with versions against the floors",
		Example: `  sallyport doctor
  sallyport doctor -o json`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			checks := examine(c.Context())
			if asJSON {
				err = printJSON(c.OutOrStdout(), checks)
			} else {
				err = printChecks(c, checks)
			}
			return errors.Join(err, verdictOf(checks))
		},
	}
	addOutput(c)
	return c
}

// check is one thing that the machine must or may have.
type check struct {
	What   string `json:"what"`
	Found  string `json:"found"`
	Needed string `json:"needed"`
	State  string `json:"state"` // ok, missing, optional
	Fix    string `json:"fix,omitempty"`
}

func printChecks(c *cobra.Command, checks []check) error {
	rows := [][]string{{"CHECK", "FOUND", "NEEDED", "STATE"}}
	for _, k := range checks {
		rows = append(rows, []string{k.What, cut(k.Found, 44), k.Needed, k.State})
	}
	if err := printTable(c.OutOrStdout(), rows); err != nil {
		return err
	}
	for _, k := range checks {
		if k.State != "ok" && k.Fix != "" {
			fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", k.What, k.Fix)
		}
	}
	return nil
}

func verdictOf(checks []check) error {
	for _, k := range checks {
		if k.State == "missing" {
			return hint(fmt.Errorf("this machine is not ready: %s", k.What), "%s", k.Fix)
		}
	}
	return nil
}

// examine runs every check; none changes anything that outlives it.
func examine(ctx context.Context) []check {
	checks := []check{checkRoot(), checkProgram(), checkKernel(), checkCgroup()}
	for _, t := range []struct {
		name, fix string
		optional  bool
	}{
		{"containerd", "make setup", false},
		{"nerdctl", "make setup", false},
		{"runc", "make setup", false},
		{"runsc", "for --isolation hardened: make setup-hardened", true},
	} {
		checks = append(checks, checkTool(ctx, t.name, t.fix, t.optional))
	}
	checks = append(checks, checkIPTables(), checkNetwork(ctx), checkAccounts(), checkImage())
	return checks
}

func state(ok, optional bool) string {
	switch {
	case ok:
		return "ok"
	case optional:
		return "optional"
	default:
		return "missing"
	}
}

func checkRoot() check {
	uid := os.Geteuid()
	return check{"root", "uid " + strconv.Itoa(uid), "uid 0", state(uid == 0, false), "sudo sallyport doctor"}
}

func checkProgram() check {
	path, mode, err := thisProgram()
	found := mode.String() + " " + path
	if path == "" {
		found = err.Error()
	}
	return check{"program", found, "readable and executable by all", state(err == nil, false), "chmod 0755 " + quoteArgs([]string{path})[0]}
}

func checkKernel() check {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return check{"kernel", err.Error(), "", "missing", ""}
	}
	release := unix.ByteSliceToString(u.Release[:])
	floor := deploy.Floors()["kernel"]
	return check{"kernel", release, floor + " or newer", state(deploy.AtLeast(release, floor), false), "boot a newer kernel"}
}

// checkCgroup wants the controllers that the limits of a sandbox need, in
// either version of the hierarchy (cgroups(7)).
func checkCgroup() check {
	k := check{What: "cgroup", Needed: "memory, pids, cpu", Fix: "mount the cgroup file system: see cgroups(7)"}
	if data, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		k.Found = "v2: " + strings.TrimSpace(string(data))
		k.State = state(hasAll(k.Found, "memory", "pids", "cpu"), false)
		return k
	}
	found := []string{}
	for _, c := range []string{"memory", "pids", "cpu"} {
		if info, err := os.Stat("/sys/fs/cgroup/" + c + "/tasks"); err == nil && !info.IsDir() {
			found = append(found, c)
		}
	}
	k.Found = "v1: " + strings.Join(found, " ")
	k.State = state(hasAll(k.Found, "memory", "pids", "cpu"), false)
	return k
}

func hasAll(s string, words ...string) bool {
	fields := strings.Fields(s)
	for _, w := range words {
		ok := false
		for _, f := range fields {
			ok = ok || f == w
		}
		if !ok {
			return false
		}
	}
	return true
}

// versionPattern finds what to show of a tool's own words.
var versionPattern = regexp.MustCompile(`v?\d+\.\d+(\.\d+)?(-rc[.\d]*)?|\d{8}`)

func checkTool(ctx context.Context, name, fix string, optional bool) check {
	floor := deploy.Floors()[name]
	k := check{What: name, Needed: floor + " or newer", Fix: fix}
	path, err := deploy.Find(name)
	if err != nil {
		k.Found, k.State = notFound, state(false, optional)
		return k
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		k.Found, k.State = "does not run: "+err.Error(), state(false, optional)
		return k
	}
	line, _, _ := strings.Cut(string(out), "\n")
	k.Found = cmp.Or(versionPattern.FindString(line), "no version")
	k.State = state(deploy.AtLeast(line, floor), optional)
	return k
}

// newEnough refuses a container stack with a part below its floor: older ones let a
// container reach the host. runsc may be missing, but not be older.
func newEnough(ctx context.Context) error {
	var errs []error
	for _, name := range []string{"containerd", "nerdctl", "runc", "runsc"} {
		k := checkTool(ctx, name, "", false)
		if k.State == "ok" || name == "runsc" && k.Found == notFound {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %s, and %s is needed", name, k.Found, k.Needed))
	}
	if err := errors.Join(errs...); err != nil {
		return hint(err, "sallyport doctor")
	}
	return nil
}

// notFound is what is found of a tool that is not there.
const notFound = "not found"

func checkIPTables() check {
	k := check{What: "iptables", Needed: "on PATH", Fix: "apt-get install iptables"}
	path, err := exec.LookPath("iptables")
	k.Found, k.State = path, state(err == nil, false)
	return k
}

// checkNetwork makes a namespace with every rule and takes it away again: the
// one sure way to know that the kernel has what the cells need.
func checkNetwork(ctx context.Context) check {
	k := check{What: "network namespaces", Needed: "bridge, veth, REDIRECT, conntrack", Fix: "load the modules bridge, veth, xt_REDIRECT and nf_conntrack"}
	if os.Geteuid() != 0 {
		k.Found, k.State = "not tried without root", "missing"
		return k
	}
	n, err := cell.Open(ctx, cell.Config{Name: "sp-doctor-" + strconv.Itoa(os.Getpid())})
	if err == nil {
		err = n.Destroy(ctx)
	}
	k.Found, k.State = "work", state(err == nil, false)
	if err != nil {
		k.Found, k.Fix = "do not work", err.Error()
	}
	return k
}

func checkAccounts() check {
	k := check{What: "users", Needed: gatewayUser + ", " + brokerUser, Fix: "make setup"}
	_, err := lookupAccounts()
	k.Found, k.State = "both", state(err == nil, false)
	if err != nil {
		k.Found = err.Error()
	}
	return k
}

func checkImage() check {
	k := check{What: "sandbox image", Needed: "for the demo", Fix: "make setup"}
	archive, err := deploy.Image("sandbox")
	if err != nil {
		k.Found, k.State = "not built", "optional"
		return k
	}
	info, err := os.Stat(archive)
	if err != nil {
		k.Found, k.State = "not built", "optional"
		return k
	}
	k.Found, k.State = fmt.Sprintf("%d MiB", info.Size()>>20), "ok"
	return k
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n-1] + "…"
}
