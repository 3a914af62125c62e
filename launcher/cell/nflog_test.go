package cell_test

import (
	"bytes"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sallyport/launcher/cell"
)

// Dropped packets can be watched from the gateway's namespace, each with the
// name of its cell. (This kernel has NFLOG; without it the rule is left out.)
func droppedPacketsAreLogged(t *testing.T, l *lab) {
	const (
		group              = 213
		config             = unix.NFNL_SUBSYS_ULOG<<8 | 1 // NFULNL_MSG_CONFIG
		attrCmd, attrMode  = 1, 2                         // NFULA_CFG_CMD, NFULA_CFG_MODE
		cmdBind, copyBytes = 1, 2
	)
	err := cell.Inside(l.n.Namespace(), func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(int64(limit))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		for _, attr := range []*nl.RtAttr{
			nl.NewRtAttr(attrCmd, []byte{cmdBind}),
			nl.NewRtAttr(attrMode, []byte{0, 0, 0xff, 0xff, copyBytes, 0}),
		} {
			req := nl.NewNetlinkRequest(config, 0)
			genmsg := []byte{unix.AF_INET, 0, 0, group} // the group in the network's order
			req.AddRawData(append(genmsg, attr.Serialize()...))
			if err := unix.Sendto(fd, req.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return err
			}
		}
		if err := send(l.b, "1.1.1.1:443", "canary-of-b"); err != nil {
			return err
		}
		buf := make([]byte, 65536)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return err
			}
			if bytes.Contains(buf[:n], []byte("canary-of-b")) {
				if !bytes.Contains(buf[:n], []byte(l.b.Bridge+"\x00")) {
					t.Errorf("message %q does not name the cell", buf[:n])
				}
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}
