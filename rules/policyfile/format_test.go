package policyfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"sallyport/rules/policyfile"
)

var originLine = regexp.MustCompile(`(?m)^ *origin: .*\n|, origin: "[^"]*"`)

// meaning is the digest of what a policy says, wherever its rules stand.
func meaning(tb rapid.TB, text string) string {
	tb.Helper()
	p, err := policyfile.ReadPolicy(policyfile.Input{Name: "p.yaml", Data: []byte(text)}, nil)
	if err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	return policyfile.Digest(originLine.ReplaceAll(p.Effective, nil))
}

// comments are those of a text, sorted: none of the texts of these tests has a
// number sign elsewhere.
func commentsOf(text string) map[string]int {
	out := map[string]int{}
	for line := range strings.Lines(text) {
		if _, c, ok := strings.Cut(line, "#"); ok {
			for one := range strings.SplitSeq(c, "#") { // two that came to stand on one line
				out[strings.Trim(one, " \n")]++
			}
		}
	}
	return out
}

func TestFormat(t *testing.T) {
	names, err := filepath.Glob("testdata/format/*.in.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, in := range names {
		golden := strings.TrimSuffix(in, ".in.yaml") + ".out.yaml"
		data, err := os.ReadFile(in)
		if err != nil {
			t.Fatal(err)
		}
		got, err := policyfile.Format(in, data)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
		if again, err := policyfile.Format(golden, got); err != nil || string(again) != string(got) {
			t.Errorf("%s: formatted again it is another (%v):\n%s", in, err, cmp.Diff(string(got), string(again)))
		}
		if diff := cmp.Diff(commentsOf(string(data)), commentsOf(string(got))); diff != "" {
			t.Errorf("%s: comments (-in +out):\n%s", in, diff)
		}
	}
}

func TestFormatRefusesWhatItCannotRead(t *testing.T) {
	for _, text := range []string{"", "a: [\n", head + "rules: &a []\n", "kind: Policy\n", head + "rules: []\n---\nx: y\n"} {
		if out, err := policyfile.Format("p.yaml", []byte(text)); err == nil || out != nil {
			t.Errorf("%q was formatted as %q", text, out)
		}
	}
	// What does not load is laid out all the same; what it says stays wrong.
	out, err := policyfile.Format("p.yaml", []byte(head+"ruls:   [a,b]\nmode: 'obey'\n"))
	if want := head + "mode: obey\nruls: [a, b]\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}

// styled writes values in a layout that a person might have chosen.
type styled struct {
	t *rapid.T
	strings.Builder
	comments int
}

type entry struct {
	key   string
	value any // string, []any, []entry
}

func (s *styled) pick(most int) int { return rapid.IntRange(0, most).Draw(s.t, "style") }

func (s *styled) comment(indent int) {
	for s.pick(4) == 0 {
		s.comments++
		fmt.Fprintf(s, "%s# c%d\n", strings.Repeat(" ", indent), s.comments)
	}
	if s.pick(5) == 0 {
		s.WriteByte('\n')
	}
}

func (s *styled) end() {
	if s.pick(5) == 0 {
		s.comments++
		fmt.Fprintf(s, " # c%d", s.comments)
	}
	s.WriteByte('\n')
}

func (s *styled) scalar(v string, plain bool) string {
	switch n := s.pick(2); {
	case v == "80" || v == "443":
		return v
	case n == 0 && plain && regexp.MustCompile(`^[a-zA-Z0-9/][a-zA-Z0-9 ./-]*$`).MatchString(v) && v != "2027":
		return v
	case n == 1:
		return "'" + strings.ReplaceAll(v, "'", "''") + "'"
	default:
		return fmt.Sprintf("%q", v)
	}
}

func (s *styled) flow(v any) string {
	var parts []string
	switch x := v.(type) {
	case []entry:
		for _, e := range s.shuffled(x) {
			parts = append(parts, e.key+": "+s.flow(e.value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		for _, e := range x {
			parts = append(parts, s.flow(e))
		}
		return "[" + strings.Join(parts, ",") + "]"
	default:
		return s.scalar(v.(string), true)
	}
}

func (s *styled) shuffled(list []entry) []entry {
	return rapid.Permutation(list).Draw(s.t, "order")
}

// value writes a value after its key or dash; the line is open.
func (s *styled) value(v any, indent int) {
	list, isList := v.([]any)
	m, isMap := v.([]entry)
	switch {
	case !isList && !isMap && v != "80" && v != "443" && s.pick(5) == 0:
		s.WriteString(" |-")
		s.end()
		fmt.Fprintf(s, "%s%s\n", strings.Repeat(" ", indent+3), v)
	case !isList && !isMap || s.pick(1) == 0:
		s.WriteString(" " + s.flow(v))
		s.end()
	case isList:
		s.end()
		s.list(list, indent+s.pick(1)*2)
	default:
		s.end()
		s.mapping(m, indent+2+s.pick(1))
	}
}

func (s *styled) list(list []any, indent int) {
	for _, v := range list {
		s.comment(indent)
		s.WriteString(strings.Repeat(" ", indent) + "-")
		if m, ok := v.([]entry); ok && s.pick(1) == 0 {
			for i, e := range s.shuffled(m) {
				if i > 0 {
					s.comment(indent + 2)
					s.WriteString(strings.Repeat(" ", indent+1))
				}
				s.WriteString(" " + e.key + ":")
				s.value(e.value, indent+2)
			}
			continue
		}
		s.value(v, indent)
	}
}

func (s *styled) mapping(m []entry, indent int) {
	for _, e := range s.shuffled(m) {
		s.comment(indent)
		s.WriteString(strings.Repeat(" ", indent) + e.key + ":")
		s.value(e.value, indent)
	}
}

func somePolicyFile(t *rapid.T) []entry {
	reason := rapid.SampledFrom([]string{"because", "it's so: really", "a sentence, that goes on and on " + strings.Repeat("and on ", 12) + "to its end", "yes", "2027"})
	words := func(label string, from ...string) any {
		var out []any
		for _, s := range rapid.SliceOfNDistinct(rapid.SampledFrom(from), 1, len(from), rapid.ID[string]).Draw(t, label) {
			out = append(out, s)
		}
		return out
	}
	list := []any{}
	for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
		match := []entry{
			{"hosts", words("hosts", "a.test", "*.b.test", "bücher.test", "10.1.2.3")},
			{"ports", words("ports", "80", "443")},
			{"methods", words("methods", "GET", "POST")},
			{"paths", words("paths", "/", "/v1/*", "/a%20b/**")},
			{"cidrs", words("cidrs", "10.0.0.0/8")},
		}
		list = append(list, []entry{
			{"id", fmt.Sprintf("r%d", i)}, {"reason", reason.Draw(t, "reason")}, {"allow", match}, {"expires", "2027-01-31"},
		})
	}
	return []entry{
		{"apiVersion", "sallyport/v1"},
		{"kind", "Policy"},
		{"metadata", []entry{{"name", "p"}, {"description", reason.Draw(t, "description")}}},
		{"rules", list},
		{"never", []any{[]entry{{"host", "c.test"}, {"reason", reason.Draw(t, "why")}}}},
		{"tests", []any{[]entry{{"request", "GET https://c.test/"}, {"expect", "deny"}}}},
	}
}

// TestFormatKeepsTheMeaning: whatever the layout, formatting keeps meaning and
// comments, and formatting again changes nothing.
func TestFormatKeepsTheMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &styled{t: t}
		s.mapping(somePolicyFile(t), 0)
		s.comment(0)
		text := s.String()
		want := meaning(t, text)
		out, err := policyfile.Format("p.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if got := meaning(t, string(out)); got != want {
			t.Fatalf("another meaning:\n%s\n%s", text, out)
		}
		if diff := cmp.Diff(commentsOf(text), commentsOf(string(out))); diff != "" {
			t.Fatalf("comments (-in +out):\n%s\n%s\n%s", diff, text, out)
		}
		if again, err := policyfile.Format("p.yaml", out); err != nil || string(again) != string(out) {
			t.Fatalf("formatted again it is another (%v):\n%s\n%s", err, out, again)
		}
	})
}

// FuzzFormat: whatever is formatted can be formatted again, and is then the same.
func FuzzFormat(f *testing.F) {
	for _, pattern := range []string{"testdata/valid/*.yaml", "testdata/format/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := policyfile.Format("p.yaml", data)
		if err != nil {
			return
		}
		if again, err := policyfile.Format("p.yaml", out); err != nil || string(again) != string(out) {
			t.Errorf("formatted again it is another (%v):\n%q\n%q\n%q", err, data, out, again)
		}
	})
}
