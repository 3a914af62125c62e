package dns_test

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"sallyport/audit"
	"sallyport/broker"
	"sallyport/control"
	"sallyport/proxy/dns"
	"sallyport/rules"
	"sallyport/rules/target"
)

// TestPlaceholderInAQuery: DN-01, CR-04. A name that holds a placeholder, in what labels
// can hold, is refused as a leak whatever the policy has looked up or allows, recorded
// without it, and told to nobody.
func TestPlaceholderInAQuery(t *testing.T) {
	const stand = "sk_test_PlAcEhOlDeR0000000000001"
	client := broker.NewClient("/nowhere")
	t.Cleanup(client.Close)
	client.Attach(control.CellFile{Cell: "one", Run: "run-one", Grants: []control.Grant{
		{Credential: "stripe", Env: "KEY", Placeholder: stand, Place: control.Place{Type: "bearer", Header: "Authorization"}},
	}})
	w := newWorldOf(t, func(s *rules.Source) {
		for _, of := range []string{"ok.test", stand + ".wild.test", "x.wild.test"} { // as if a policy could know it
			s.Lookups = append(s.Lookups, rules.Lookup{Name: name(t, of), Type: mdns.TypeTXT})
		}
	}, func(c *dns.Config) { c.FindName = client.FindName })
	spellings := map[string]func(string) string{
		"plain":       func(s string) string { return s },
		"over labels": func(s string) string { return s[:10] + "." + s[10:11] + "." + s[11:] },
		"hexadecimal": func(s string) string { h := hex.EncodeToString([]byte(s)); return h[:40] + "." + h[40:] },
		"base32": func(s string) string {
			return strings.TrimRight(base32.StdEncoding.EncodeToString([]byte("id="+s)), "=")
		},
		"base32hex": func(s string) string {
			return base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte(s))
		},
		"base64url": func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("k:" + s)) },
	}
	twin := []byte(stand)
	slices.Reverse(twin[8:])
	for spelling, write := range spellings {
		for _, odd := range []func(*mdns.Msg){ // refused before the policy is asked
			func(m *mdns.Msg) { m.Question[0].Qtype = mdns.TypeAXFR },
			func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS },
		} {
			m := query(write(stand)+".evil.test", mdns.TypeA)
			odd(m)
			w.ask(m)
			if r := w.only(); r.Reason != "dns_type_not_allowed" || r.Error != "h" || r.Host != "" {
				t.Errorf("%s: record %+v", spelling, r)
			}
		}
		for _, zone := range []string{".wild.test", ".evil.test"} {
			for _, qtype := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeTXT, mdns.TypeANY} {
				host := write(stand) + zone
				got := w.ask(query(host, qtype))
				recs := w.records.take()
				if len(recs) != 2 || recs[0].Kind != audit.DNS || recs[1].Kind != audit.Credential || recs[1].Ref != recs[0].ID {
					t.Fatalf("%s%s, type %d: records %+v", spelling, zone, qtype, recs)
				}
				for _, r := range recs {
					if r.Reason != "placeholder_leak" || r.Credential != "stripe" || r.Host != "h"+zone {
						t.Errorf("%s%s, type %d: record %+v", spelling, zone, qtype, r)
					}
				}
				if recs[0].Verdict != "deny" || recs[1].Event != "leak" {
					t.Errorf("%s%s, type %d: records %+v", spelling, zone, qtype, recs)
				}
				if got == nil || qtype == mdns.TypeTXT && said(got) != "NODATA" {
					t.Errorf("%s%s, type %d: %s", spelling, zone, qtype, said(got))
				}
				w.ask(query(write(string(twin))+zone, qtype))
				if r := w.only(); r.Reason == "placeholder_leak" || !strings.HasSuffix(r.Host, strings.ToLower(write(string(twin)))+zone) {
					t.Errorf("%s%s, type %d, twin: %+v", spelling, zone, qtype, r)
				}
			}
		}
	}
	if got := said(w.askAs(two, query(stand+".wild.test", mdns.TypeA))); got == "silence" {
		t.Error(got)
	}
	if recs := w.records.take(); len(recs) != 2 || recs[0].Reason != "placeholder_leak" {
		t.Errorf("another cell: %+v", recs)
	}
	if asked := w.resolver.Queries(); len(asked) > 0 { // and again when the world ends
		t.Errorf("upstream was asked %v", asked)
	}
	client.Detach("one")
	n, err := target.ParseName(stand + ".wild.test")
	if err != nil {
		t.Fatal(err)
	}
	if got := client.FindName("one", n); got != nil {
		t.Errorf("after its run: %v", got)
	}
}
