package cell_test

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/launcher/cell"
)

func TestOpenRefusesConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   cell.Config
		want string
	}{
		{"path as name", cell.Config{Name: "../nowhere"}, "name"},
		{"option as name", cell.Config{Name: "-nowhere"}, "name"}, // CT-12
		{"dot in name", cell.Config{Name: "a.b"}, "name"},
		{"a default cell's name", cell.Config{Name: "sp-abcdefgh"}, "name"},
		{"IPv6", cell.Config{Prefix: netip.MustParsePrefix("fd00::/16")}, "prefix"},
		{"too small", cell.Config{Prefix: netip.MustParsePrefix("10.0.0.0/29")}, "prefix"},
		{"host bits", cell.Config{Prefix: netip.MustParsePrefix("10.0.0.1/16")}, "prefix"},
		{"explicit on 53", cell.Config{ExplicitPort: 53}, "ports"},
		{"same ports", cell.Config{ExplicitPort: 8000, TransparentPort: 8000}, "ports"},
		{"DNS on the proxy's port", cell.Config{DNSPort: 3128}, "ports"},
		{"no flows", cell.Config{Flows: -1}, "flows"},
		{"more flows than the kernel keeps", cell.Config{Flows: 1 << 30}, "nf_conntrack_max"},
		{"no rate", cell.Config{FlowRate: -1}, "rate"},
		{"absurd rate", cell.Config{FlowRate: 10001}, "rate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.in.Name == "" {
				tt.in.Name = uniqueName()
			}
			n, err := cell.Open(t.Context(), tt.in)
			if err == nil {
				n.Destroy(t.Context())
				n.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open(%+v): %v, want it to say %q", tt.in, err, tt.want)
			}
			if left, err := filepath.Glob("/run/netns/" + filepath.Base(tt.in.Name) + "*"); err != nil || len(left) > 0 {
				t.Errorf("the refusal left %v, %v", left, err)
			}
		})
	}
}

func TestAddressesFollowFromIndex(t *testing.T) {
	n := mustOpen(t, cell.Config{Name: uniqueName(), Prefix: netip.MustParsePrefix("172.31.0.0/20")})
	for _, tt := range []struct {
		id, gateway, sandbox, subnet string
		index                        int
	}{
		{"aaaaaaaa", "172.31.0.1", "172.31.0.2", "172.31.0.0/28", 0},
		{"bbbbbbbb", "172.31.0.17", "172.31.0.18", "172.31.0.16/28", 1},
		{"cccccccc", "172.31.15.241", "172.31.15.242", "172.31.15.240/28", 255},
	} {
		c := mustCreate(t, n, tt.id, tt.index)
		if c.Gateway.String() != tt.gateway || c.Sandbox.String() != tt.sandbox || c.Subnet.String() != tt.subnet {
			t.Errorf("cell %d = %+v, want %s, %s, %s", tt.index, c, tt.gateway, tt.sandbox, tt.subnet)
		}
	}
	if _, err := n.Create(t.Context(), "dddddddd", 256); err == nil {
		t.Error("Create beyond the prefix succeeded")
	}
	if err := n.Verify(t.Context()); err != nil {
		t.Errorf("Verify: %v", err)
	}
}

func listenRefuses(t *testing.T, n *cell.Network, _ cell.Cell) {
	for _, tt := range []struct{ network, address string }{
		{"tcp6", ":80"},
		{"unix", "/tmp/x"},
		{"", ":80"},
		{"tcp", "localhost:80"},
		{"tcp", "[::]:80"},
		{"tcp", "80"},
		{"udp", "example.com:53"},
		{"tcp", "192.0.2.9:80"}, // an address that is nobody's
	} {
		if f, err := n.Listen(t.Context(), tt.network, tt.address); err == nil {
			f.Close()
			t.Errorf("Listen(%q, %q) succeeded", tt.network, tt.address)
		}
	}
}
