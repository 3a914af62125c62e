package dns_test

import (
	"encoding/binary"
	"maps"
	"testing"

	mdns "github.com/miekg/dns"

	"sallyport/rules"
)

// TestPipelinedQueries: DN-05. Queries that come in one segment, before the first is
// answered (RFC 7766 section 6.2.1.1), are each answered and each recorded once.
func TestPipelinedQueries(t *testing.T) {
	w := newWorld(t, rules.NameErrorDenied, nil)
	stop := w.serve()
	defer stop()
	want := map[string]string{
		"ok.test.": "198.18.0.1", "evil.test.": "NXDOMAIN", "n1.wild.test.": "198.18.0.2", "n2.wild.test.": "198.18.0.3", "other.test.": "NXDOMAIN",
	}
	ids := map[uint16]string{}
	var segment []byte
	for _, qname := range []string{"ok.test.", "evil.test.", "n1.wild.test.", "n2.wild.test.", "other.test."} {
		m := query(qname, mdns.TypeA)
		ids[m.Id] = qname
		wire, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		segment = append(binary.BigEndian.AppendUint16(segment, uint16(len(wire))), wire...)
	}
	c := from(t, "tcp", one, gateway)
	if _, err := c.Write(segment); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for range want {
		m, err := (&mdns.Conn{Conn: c}).ReadMsg()
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		if name := m.Question[0].Name; ids[m.Id] != name {
			t.Errorf("the answer about %s has the id of the query about %q", name, ids[m.Id])
		}
		got[m.Question[0].Name] = said(m)
	}
	if !maps.Equal(got, want) {
		t.Errorf("answers %v, want %v", got, want)
	}
	recorded := map[string]int{}
	for _, r := range w.records.take() {
		recorded[r.Host+"."]++
		if allowed := want[r.Host+"."] != "NXDOMAIN"; allowed != (r.Reason == "allowed") {
			t.Errorf("%s is recorded with reason %s", r.Host, r.Reason)
		}
	}
	for qname := range want {
		if recorded[qname] != 1 {
			t.Errorf("%s has %d records", qname, recorded[qname])
		}
	}
}
