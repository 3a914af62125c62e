package rules_test

import (
	"net/netip"
	"testing"

	"sallyport/rules"
	"sallyport/rules/target"
)

const (
	typeTXT, typeAAAA, typeSRV = 16, 28, 33
)

// lookups makes lookups of names and a type.
func lookups(t *testing.T, qtype uint16, names ...string) (list []rules.Lookup) {
	t.Helper()
	for _, s := range names {
		n, err := target.ParseName(s)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, rules.Lookup{Name: n, Type: qtype})
	}
	return list
}

// lookupPolicy has AAAA, TXT and SRV of some names looked up.
func lookupPolicy(t *testing.T, change func(*rules.Source)) *rules.Policy {
	t.Helper()
	allow := func(id string, change func(*rules.Rule), names ...string) rules.Rule {
		r := rules.Rule{ID: id, Where: "p.yaml:1", Action: rules.AllowAction, Hosts: hosts(t, names...), Ports: []uint16{443}}
		if change != nil {
			change(&r)
		}
		return r
	}
	src := rules.Source{Name: "p", Digest: "sha256:00", Rules: []rules.Rule{
		allow("ok", nil, "ok.test", "*.wild.test"),
		allow("corp", func(r *rules.Rule) { r.Private = cidrs("10.20.0.0/16") }, "corp.test"),
		allow("old", func(r *rules.Rule) { r.Expires = 100 }, "old.test"),
		{ID: "no", Where: "p.yaml:2", Hosts: hosts(t, "no.wild.test", "_no._tcp.ok.test")},
		{ID: "range", Where: "p.yaml:3", Private: cidrs("2606:4700::/32")},
	}}
	src.Lookups = append(lookups(t, typeTXT, "ok.test", "a.wild.test", "no.wild.test", "old.test", "other.test"),
		append(lookups(t, typeSRV, "_https._tcp.ok.test", "_no._tcp.ok.test", "_https._tcp.other.test"),
			lookups(t, typeAAAA, "ok.test", "corp.test")...)...)
	if change != nil {
		change(&src)
	}
	p, err := rules.Compile(src)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLookups(t *testing.T) {
	tests := []struct {
		name  string
		qtype uint16
		now   int64
		want  rules.Reason
		rule  string
	}{
		{"ok.test", typeSRV, 0, rules.TypeNotAllowed, ""}, // listed for another type
		{"b.wild.test", typeTXT, 0, rules.TypeNotAllowed, ""},
		{"aGVsbG8.ok.test", typeTXT, 0, rules.TypeNotAllowed, ""}, // DN-01: below a listed name
		{"aGVsbG8.a.wild.test", typeTXT, 0, rules.TypeNotAllowed, ""},
		{"_x._tcp.ok.test", typeSRV, 0, rules.TypeNotAllowed, ""},
		{"no.wild.test", typeTXT, 0, rules.DeniedByRule, "no"},
		{"_no._tcp.ok.test", typeSRV, 0, rules.DeniedByRule, "no"},
		{"old.test", typeTXT, 100, rules.RuleExpired, "old"},
		{"other.test", typeTXT, 0, rules.HostNotAllowed, ""},
		{"_https._tcp.other.test", typeSRV, 0, rules.HostNotAllowed, ""},

		{"ok.test", typeTXT, 0, rules.Allowed, "ok"},
		{"ok.test", typeAAAA, 0, rules.Allowed, "ok"},
		{"a.wild.test", typeTXT, 0, rules.Allowed, "ok"},
		{"old.test", typeTXT, 99, rules.Allowed, "old"},
		{"_https._tcp.ok.test", typeSRV, 0, rules.Allowed, "ok"},
	}
	strict := lookupPolicy(t, nil)
	lax := lookupPolicy(t, func(s *rules.Source) { s.Observe = true })
	for _, tt := range tests {
		r := rules.Request{Question: rules.Resolve, Endpoint: target.Endpoint{Host: hosts(t, tt.name)[0].Host}, Type: tt.qtype, Now: tt.now}
		for mode, p := range map[string]*rules.Policy{"enforce": strict, "observe": lax} {
			d := p.Decide(r)
			if d.Reason != tt.want || d.Rule != tt.rule || d.LookUp != (tt.want == rules.Allowed) || (d.Verdict == rules.Deny) == d.LookUp {
				t.Errorf("%s: type %d of %s = %+v, want %s by %q", mode, tt.qtype, tt.name, d, tt.want, tt.rule)
			}
		}
	}
	// Only these are looked up: never A, and nothing without such a list.
	a := rules.Request{Question: rules.Resolve, Endpoint: target.Endpoint{Host: hosts(t, "ok.test")[0].Host}, Type: 1}
	if d := strict.Decide(a); d.LookUp || d.Reason != rules.Allowed {
		t.Errorf("A: %+v", d)
	}
	none := lookupPolicy(t, func(s *rules.Source) { s.Lookups = nil })
	a.Type = typeTXT
	if d := none.Decide(a); d.LookUp || d.Reason != rules.TypeNotAllowed {
		t.Errorf("without a list: %+v", d)
	}
	with, err := strict.With(nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := with.Decide(a); !d.LookUp {
		t.Errorf("with approvals: %+v", d)
	}
}

// TestLeakInAQuery: a name that holds a placeholder is refused whatever the policy says
// of it, is not looked up, and is answered as other denied names are. A policy that
// enforces nothing refuses it as well.
func TestLeakInAQuery(t *testing.T) {
	const typeA = 1
	leak := []rules.Carry{{Credential: "key", State: rules.LeakedInHost}}
	for _, nxdomain := range []bool{false, true} {
		for _, observe := range []bool{false, true} {
			p := lookupPolicy(t, func(s *rules.Source) {
				s.Observe = observe
				if nxdomain {
					s.Denied = rules.NameErrorDenied
				}
			})
			for _, tt := range []struct {
				name  string
				qtype uint16
			}{{"ok.test", typeTXT}, {"b.wild.test", typeTXT}, {"b.wild.test", typeA}, {"evil.test", typeA}, {"evil.test", typeTXT}} {
				host, err := target.ParseHost(tt.name)
				if err != nil {
					t.Fatal(err)
				}
				req := rules.Request{Question: rules.Resolve, Cell: "cell", Endpoint: target.Endpoint{Host: host}, Type: tt.qtype}
				twin := p.Decide(req)
				req.Carries = leak
				d := p.Decide(req)
				if d.Verdict != rules.Deny || d.Reason != rules.PlaceholderLeak || d.Credential != "key" || d.LookUp || d.NameError != nxdomain {
					t.Errorf("type %d of %s, nxdomain %v, observed %v: %+v", tt.qtype, tt.name, nxdomain, observe, d)
				}
				if twin.Reason == rules.PlaceholderLeak || twin.Credential != "" || twin.LookUp != (tt.name == "ok.test") {
					t.Errorf("type %d of %s, twin: %+v", tt.qtype, tt.name, twin)
				}
			}
		}
	}
}

// TestAddressesInAnswers: an address is answered where it could be dialled.
func TestAddressesInAnswers(t *testing.T) {
	tests := []struct {
		name, addr string
		want       rules.Reason
	}{
		{"ok.test", "::1", rules.PrivateIP},
		{"ok.test", "fd00::1", rules.PrivateIP},
		{"ok.test", "::ffff:10.20.0.1", rules.PrivateIP},
		{"ok.test", "64:ff9b::a14:1", rules.PrivateIP}, // NAT64 of 10.20.0.1
		{"ok.test", "2606:4700::1", rules.DeniedByRule},
		{"corp.test", "10.21.0.1", rules.PrivateIP},
		{"other.test", "2a00::1", rules.TypeNotAllowed}, // not listed for AAAA
		{"ok.test", "2a00:1450::1", rules.Allowed},
		{"corp.test", "::ffff:10.20.0.1", rules.Allowed},
	}
	p := lookupPolicy(t, nil)
	for _, tt := range tests {
		d := p.Decide(rules.Request{
			Question: rules.Reach, Endpoint: target.Endpoint{Host: hosts(t, tt.name)[0].Host},
			Type: typeAAAA, Addr: netip.MustParseAddr(tt.addr),
		})
		if d.Reason != tt.want || (d.Verdict != rules.Deny) != (tt.want == rules.Allowed) {
			t.Errorf("%s in the answer for %s = %s %s, want %s", tt.addr, tt.name, d.Verdict, d.Reason, tt.want)
		}
	}
}
