package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// networks are the lab's own. They are routed to lo as local, so that servers
// can listen on any of their addresses although no interface has it: to the
// gateway they look like somebody else's.
var networks = []string{"11.7.7.0/24", "10.77.0.0/24", "169.254.169.254/32", "2a0d:7777::/64"}

// Isolated returns an error if the present network namespace has a way out: a
// default route, or an interface that is up and may lead anywhere.
func Isolated() error {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("reading the routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() {
			return errors.New("this network namespace has a default route; use one of its own: unshare --net")
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("reading the interfaces: %w", err)
	}
	for _, l := range links {
		up := l.Attrs().Flags&net.FlagUp != 0
		loopback := l.Attrs().Flags&net.FlagLoopback != 0
		if up && !loopback && l.Type() != "dummy" && l.Type() != "bridge" {
			return fmt.Errorf("this network namespace has the interface %q; use one of its own: unshare --net", l.Attrs().Name)
		}
	}
	return nil
}

// Prepare gives the present network namespace the lab's addresses, if it has
// no way out. It may be called again.
func Prepare() error {
	if err := Isolated(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	for _, text := range networks {
		_, dst, err := net.ParseCIDR(text)
		if err != nil {
			return err
		}
		r := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL,
			Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST,
		}
		err = netlink.RouteReplace(r)
		if dst.IP.To4() == nil && err != nil {
			continue // a kernel without IPv6; see [HasIPv6]
		}
		if err != nil {
			return fmt.Errorf("routing %s to lo: %w", text, err)
		}
	}
	return nil
}

// HasIPv6 reports whether the lab's IPv6 network is there.
func HasIPv6() bool {
	l, err := net.Listen("tcp6", "[2a0d:7777::1]:0")
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// nested marks a process that was started by [Main], lest it start itself
// without end.
const nested = "SALLYPORT_LAB_NAMESPACE"

// Main is for a package's TestMain: os.Exit(lab.Main(m)). It starts the test
// binary again in a network namespace of its own, so that packages which are
// tested at the same time do not meet, and runs the tests there. Without root
// the present namespace must do, and must be isolated.
func Main(m interface{ Run() int }) int {
	if os.Getenv(nested) == "" && os.Geteuid() == 0 {
		return again()
	}
	if err := Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "lab: error:", err)
		fmt.Fprintln(os.Stderr, "lab: hint: run the tests as root, or in a namespace that was made by unshare --net")
		return 1
	}
	return m.Run()
}

func again() int {
	runtime.LockOSThread() // the child is killed when the thread that made it ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), nested+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "lab: error: starting the tests in a network namespace of their own:", err)
		return 1
	}
	return 0
}
