package export_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/netip"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sallyport/audit"
)

// cefLine is how ArcSight's guide says that a line is to be read.
var (
	cefLine = regexp.MustCompile(`^CEF:0\|((?:[^|\\]|\\.)*)\|((?:[^|\\]|\\.)*)\|((?:[^|\\]|\\.)*)\|((?:[^|\\]|\\.)*)\|((?:[^|\\]|\\.)*)\|([0-9]|10)\|(.*)$`)
	cefPair = regexp.MustCompile(`(?:^| )([A-Za-z0-9]+)=((?:[^=\\]|\\.)*?)(?:$| [A-Za-z0-9]+=)`)

	cefHeadUnquote  = strings.NewReplacer(`\\`, `\`, `\|`, `|`)
	cefValueUnquote = strings.NewReplacer(`\\`, `\`, `\=`, `=`, `\n`, "\n", `\r`, "\r")
)

// readCEF reads a line: its name, and its extension's pairs.
func readCEF(t *testing.T, line string) (name string, pairs map[string]string) {
	t.Helper()
	m := cefLine.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("no CEF: %s", line)
	}
	pairs = map[string]string{}
	for rest := m[7]; rest != ""; {
		at := cefPair.FindStringSubmatchIndex(rest)
		if at == nil || at[0] != 0 {
			t.Fatalf("no pairs: %s", rest)
		}
		key := rest[at[2]:at[3]]
		if _, twice := pairs[key]; twice {
			t.Errorf("%s is there twice: %s", key, line)
		}
		pairs[key] = cefValueUnquote.Replace(rest[at[4]:at[5]])
		rest = strings.TrimPrefix(rest[at[5]:], " ")
	}
	return cefHeadUnquote.Replace(m[5]), pairs
}

func cefLines(t *testing.T, recs []audit.Record) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(string(write(t, "cef", recs)), "\n"), "\n")
	if len(lines) != len(recs) {
		t.Fatalf("%d lines for %d records", len(lines), len(recs))
	}
	return lines
}

func TestCEFReadsBack(t *testing.T) {
	recs := records(t)
	odd := recs[len(recs)-1]
	odd.Reason = `a|b\c=d`
	recs = append(recs, odd)
	for i, line := range cefLines(t, recs) {
		r := recs[i]
		name, got := readCEF(t, line)
		if want := strings.Join(strings.Fields(string(r.Kind)+" "+r.Event+" "+r.Reason), " "); name != want {
			t.Errorf("record %d has the name %q, want %q", r.Seq, name, want)
		}
		url := r.Path
		if r.Path != "" && r.Host != "" {
			u, err := neturl.Parse(got["request"])
			if err != nil || u.Scheme == "" || u.Hostname() != r.Host || !strings.HasSuffix(got["request"], r.Path) {
				t.Errorf("record %d was asked for at %q, %v", r.Seq, got["request"], err)
			}
			url = got["request"]
		}
		if got["request"] != url || got["dhost"] != r.Host || got["msg"] != r.Error || got["externalId"] != r.ID || got["cs1"] != r.Run ||
			got["reason"] != r.Reason {
			t.Errorf("record %d reads as %v", r.Seq, got)
		}
	}
}

// TestCEFIsReadByRsyslog: liblognorm, the parser of rsyslog, finds in each line what
// the record says, and passes none by.
func TestCEFIsReadByRsyslog(t *testing.T) {
	recs := append(records(t), everyKind()...)
	odd := recs[len(recs)-1]
	odd.Reason, odd.Error, odd.Path = `a|b\c=d`, "one = two\nthree | four\\", "/x=y&z=|"
	lines := cefLines(t, append(recs, odd))
	for i, got := range normalized(t, lines) {
		name, want := readCEF(t, lines[i])
		if v, ok := got.Extensions["t"]; ok { // of rt: it drops the letter with which the extension begins
			delete(got.Extensions, "t")
			got.Extensions["rt"] = v
		}
		if got.Vendor != "Sallyport" || got.Name != name || !maps.Equal(got.Extensions, want) {
			t.Errorf("%s\nreads as %+v", lines[i], got)
		}
	}
}

// normal is what liblognorm makes of a line.
type normal struct {
	Vendor     string `json:"DeviceVendor"`
	Name       string
	Extensions map[string]string
}

// normalized has lines read by liblognorm's own program.
func normalized(t *testing.T, lines []string) []normal {
	t.Helper()
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte("version=2\nrule=:%event:cef%\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "lognormalizer", "-r", rules)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("lognormalizer: %v: run deploy/setup.sh clients", err)
	}
	var all []normal
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var one struct {
			Event    normal
			Unparsed string `json:"originalmsg"`
		}
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil || one.Unparsed != "" {
			t.Fatalf("lognormalizer: %v: %q is no CEF", err, one.Unparsed)
		}
		all = append(all, one.Event)
	}
	if len(all) != len(lines) {
		t.Fatalf("%d of %d lines were read", len(all), len(lines))
	}
	return all
}

// TestCEFFollowsItsDictionary: the keys are ArcSight's, and of its types.
func TestCEFFollowsItsDictionary(t *testing.T) {
	text, err := os.ReadFile("testdata/cef.json")
	if err != nil {
		t.Fatal(err)
	}
	var facts struct{ Keys map[string]string }
	if err := json.Unmarshal(text, &facts); err != nil {
		t.Fatal(err)
	}
	for _, line := range cefLines(t, append(records(t), everyKind()...)) {
		_, pairs := readCEF(t, line)
		for key, v := range pairs {
			if kind, ok := facts.Keys[key]; !ok || !isCEF(kind, v) {
				t.Errorf("%s=%s: is no %q of the dictionary\n%s", key, v, kind, line)
			}
			other, isLabel := strings.CutSuffix(key, "Label")
			if _, ok := pairs[other+"Label"]; !ok && regexp.MustCompile(`^c[a-z0-9]*[0-9]$`).MatchString(key) {
				t.Errorf("%s has no label\n%s", key, line)
			}
			if _, ok := pairs[other]; isLabel && !ok {
				t.Errorf("%s labels nothing\n%s", key, line)
			}
		}
	}
}

// isCEF reports whether a value is of a type of the dictionary.
func isCEF(kind, v string) bool {
	a, noAddr := netip.ParseAddr(v)
	n, noInt := strconv.ParseInt(v, 10, 64)
	switch kind {
	case "string":
		return v != ""
	case "integer", "time": // a time in milliseconds since 1970
		return noInt == nil && n >= 0
	case "ipv4":
		return noAddr == nil && a.Is4()
	case "ipv6":
		return noAddr == nil && a.Is6() && !a.Is4In6()
	}
	return false
}

// An address of IPv6 has a place of its own: those of src and dst are of IPv4.
func TestCEFOfIPv6(t *testing.T) {
	for addr, want := range map[string]map[string]string{
		"[2001:db8::1]:443":     {"c6a2": "2001:db8::1", "c6a2Label": "Source IPv6 Address", "c6a3": "2001:db8::1", "c6a3Label": "Destination IPv6 Address"},
		"203.0.113.5:443":       {"src": "203.0.113.5", "dst": "203.0.113.5"},
		"[::ffff:10.0.0.1]:443": {"src": "10.0.0.1", "dst": "10.0.0.1"},
		"unix":                  {},
	} {
		_, got := readCEF(t, cefLines(t, []audit.Record{{Kind: audit.Done, ID: "x", Client: addr, Addr: addr}})[0])
		for _, key := range []string{"src", "dst", "c6a2", "c6a2Label", "c6a3", "c6a3Label"} {
			if got[key] != want[key] {
				t.Errorf("%s: %s=%s, want %q", addr, key, got[key], want[key])
			}
		}
	}
}
