package rules_test

import (
	"net/netip"
	"testing"

	"sallyport/rules"
)

func TestSpecial(t *testing.T) {
	tests := []struct {
		id      string
		special []string
	}{
		{"IP-01", []string{"127.0.0.1", "127.8.8.8", "127.255.255.255", "::1"}},
		{"IP-03", []string{"::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:169.254.169.254", "::ffff:10.0.0.1"}},
		{"IP-04", []string{"0.0.0.0", "::", "0.1.2.3", "::ffff:0.0.0.0"}},
		{"IP-05", []string{"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "64:ff9b::808:808", "64:ff9b:1:ffff::1"}},
		{"IP-08", []string{
			"fc00::1", "fd12::1", "fec0::1", "fe80::1", "100::1", "100:0:0:1::1", "5f00::1", "2001:db8::1", "3fff::1", "3fff:fff::1",
			"ff02::1", "::1", "::127.0.0.1", "2001::1", "2001:0:53aa:64c::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:30::1",
			"2002:7f00:1::1", "2002:808:808::1", "2620:4f:8000::1", "4000::1", "1fff::1", "8000::1", "fb00::1",
		}},
		{"IP-09", []string{
			"100.64.0.1", "100.127.255.255", "100.100.100.200", "198.18.0.1", "198.19.255.255", "192.0.0.1", "192.0.0.192", "192.88.99.1",
			"203.0.113.1", "192.0.2.1", "198.51.100.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
			"10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "169.254.0.1", "192.31.196.1", "192.52.193.1", "192.175.48.1",
		}},
		{"IP-10", []string{"169.254.169.254", "169.254.170.2", "169.254.169.253", "fd00:ec2::254", "168.63.129.16", "100.100.100.200", "192.0.0.192"}},
		{"", []string{"fe80::1%eth0", "2606:4700::1%x"}},
	}
	for _, tt := range tests {
		for _, s := range tt.special {
			if block, special := rules.Special(addr(s)); !special || block == "" {
				t.Errorf("%s: Special(%s) = %q, %v, want a block", tt.id, s, block, special)
			}
		}
	}
	if _, special := rules.Special(netip.Addr{}); !special {
		t.Error("no address is a public one")
	}
	for _, s := range []string{
		"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
		"169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.0.3.0", "192.167.255.255", "192.169.0.0",
		"198.17.255.255", "198.20.0.0", "198.51.99.255", "203.0.112.255", "203.0.114.0", "223.255.255.255", "168.63.129.15", "::ffff:8.8.8.8",
		"2606:4700::1111", "2a00:1450::1", "2001:200::1", "2001:4860:4860::8888", "2003::1", "2620:4f:8001::1", "3ffe::1",
	} {
		if block, special := rules.Special(addr(s)); special {
			t.Errorf("Special(%s) = %q, want public", s, block)
		}
	}
}

// TestReachOpens: what cidrs open, and what they never do. Each case is one
// rule for ok.example with these cidrs, and an address that the name resolved to.
func TestReachOpens(t *testing.T) {
	tests := []struct {
		id    string
		cidrs []string
		addr  string
		want  rules.Reason
	}{
		{"IP-12", nil, "10.0.0.5", rules.PrivateIP},
		{"IP-12", nil, "127.0.0.1", rules.PrivateIP},
		{"IP-12", []string{"10.20.0.0/16"}, "10.21.0.1", rules.PrivateIP},
		{"IP-10", nil, "168.63.129.16", rules.PrivateIP},
		{"IP-10", []string{"169.254.0.0/16"}, "169.254.169.254", rules.PrivateIP},
		{"IP-10", []string{"100.64.0.0/10"}, "100.100.100.200", rules.PrivateIP},
		{"IP-10", []string{"fd00::/8"}, "fd00:ec2::254", rules.PrivateIP},
		{"IP-03", []string{"10.0.0.0/8"}, "::ffff:127.0.0.1", rules.PrivateIP},
		{"IP-05", []string{"64:ff9b::/96"}, "64:ff9b::a9fe:a9fe", rules.PrivateIP},
		{"IP-05", []string{"64:ff9b::/96"}, "64:ff9b::7f00:1", rules.PrivateIP},
		{"IP-05", []string{"64:ff9b:1::/48"}, "64:ff9b:1::a00:1", rules.PrivateIP},
		{"IP-08", []string{"2002::/16"}, "2002:7f00:1::1", rules.PrivateIP},
		{"IP-08", []string{"2001::/32"}, "2001:0:1::80ff:fffe", rules.PrivateIP}, // Teredo of 127.0.0.1

		{"IP-12", nil, "93.184.216.34", rules.Allowed},
		{"IP-12", nil, "2606:4700::1111", rules.Allowed},
		{"IP-12", []string{"10.20.0.0/16"}, "10.20.3.4", rules.Allowed},
		{"IP-12", []string{"10.20.0.0/16"}, "::ffff:10.20.3.4", rules.Allowed},
		{"IP-12", []string{"10.20.0.0/16"}, "93.184.216.34", rules.Allowed},
		{"IP-10", []string{"169.254.169.254/32"}, "169.254.169.254", rules.Allowed},
		{"IP-10", []string{"fd00:ec2::254/128"}, "fd00:ec2::254", rules.Allowed},
		{"IP-05", []string{"64:ff9b::/96"}, "64:ff9b::808:808", rules.Allowed},
		{"IP-05", []string{"64:ff9b::/96", "10.0.0.0/8"}, "64:ff9b::a00:1", rules.Allowed},
		{"IP-01", []string{"127.0.0.0/8"}, "127.0.0.1", rules.Allowed},
		{"IP-01", []string{"::1/128"}, "::1", rules.Allowed},
		{"IP-08", []string{"fd00::/8"}, "fd12::1", rules.Allowed},
	}
	for _, tt := range tests {
		p := compile(t, rules.Source{Rules: []rules.Rule{{
			ID: "ok", Action: rules.AllowAction, Hosts: hosts(t, "ok.example"), Ports: []uint16{443}, Private: cidrs(tt.cidrs...),
		}}})
		got := p.Decide(rules.Request{
			Question: rules.Reach, Endpoint: endpoint(t, "ok.example:443"), Addr: addr(tt.addr),
			Method: "GET", Secure: true, Path: pathOf(t, "/"),
		})
		if got.Reason != tt.want || (got.Verdict == rules.Deny) != (tt.want != rules.Allowed) || got.Rule != "ok" {
			t.Errorf("%s: cidrs %v, Reach %s = %v %s by %q, want %s by ok", tt.id, tt.cidrs, tt.addr, got.Verdict, got.Reason, got.Rule, tt.want)
		}
	}
}
