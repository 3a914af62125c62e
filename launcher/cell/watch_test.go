package cell_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"sallyport/launcher/cell"
)

// CT-14: a cell that somebody gives another interface is told of as soon as it is up,
// or was there before; what others get, and what changes of the cell's own, is not.
func TestOtherWaysAreSeen(t *testing.T) {
	n := mustOpen(t, cell.Config{Name: uniqueName()})
	c := mustCreate(t, n, "aaaaaaaa", 5)
	ns := "nsenter --net=" + c.Netns + " "
	for _, tt := range []struct{ do, undo, want string }{
		{ns + "ip link add up0 type bridge; " + ns + "ip link set up0 up", ns + "ip link del up0", `"up0" is up in the sandbox's namespace`},
		{"ip link add up1 type veth peer name up0; ip link set up0 netns " + c.Netns + "; " + ns + "ip link set up0 up", "ip link del up1", `"up0" is up in the sandbox's namespace`},
		{ns + "ip link set eth0 name eth9; " + ns + "ip link add eth0 type bridge; " + ns + "ip link set eth0 up", ns + "ip link del eth0; " + ns + "ip link set eth9 name eth0", `"eth0" is up`},
		{"ip link add up0 type veth peer name up1; ip link set up0 master " + c.Bridge, "ip link del up0", `"up0" is a port of the cell's bridge`},
	} {
		for _, when := range []string{"before", "meanwhile"} {
			seen := make(chan error, 1)
			watch := func() { seen <- n.Watch(t.Context(), c) }
			if when == "meanwhile" {
				go watch()
				// The twin: all of this is no other way.
				other := mustCreate(t, n, "bbbbbbbb", 6)
				runIn(t, n.Namespace(), "sh", "-c", "ip link add none0 type bridge; ip link del none0; "+ns+"ip link add none0 type bridge; "+ns+"ip link set eth0 down; "+ns+"ip link set eth0 up; "+ns+"ip link del none0")
				if err := n.Remove(t.Context(), other.ID); err != nil {
					t.Fatal(err)
				}
				select {
				case err := <-seen:
					t.Fatalf("Watch = %v with nothing to see", err)
				default:
				}
			}
			runIn(t, n.Namespace(), "sh", "-c", tt.do)
			if when == "before" {
				go watch()
			}
			if err := <-seen; !errors.Is(err, cell.ErrOtherWay) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Watch, %s %q: %v, want it to say %s", when, tt.do, err, tt.want)
			}
			runIn(t, n.Namespace(), "sh", "-c", tt.undo)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Watch(ctx, c) }()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Watch of a whole cell, until nobody wants to know: %v", err)
	}
	if err := n.Watch(t.Context(), cell.Cell{ID: "cccccccc"}); err == nil || errors.Is(err, cell.ErrOtherWay) {
		t.Errorf("Watch of no cell: %v", err)
	}
}
