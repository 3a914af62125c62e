package policyfile_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"sallyport/rules/detect"
	"sallyport/rules/policyfile"
)

// found is a detector that reads files which stand for a machine's.
func found(manager string) ([]detect.Server, error) {
	files := map[string]detect.File{
		"pip": {Path: "/etc/pip.conf", Data: []byte("[global]\nindex-url = https://pip.example.com/simple\n")},
		"npm": {Path: "/etc/npmrc", Data: []byte("registry = http://10.1.2.3:4873/\n")},
	}
	f, ok := files[manager]
	if !ok {
		return nil, errors.New("nothing configures it: write x\nor y")
	}
	m, _ := detect.Lookup(manager)
	return m.Find(detect.Config{Files: []detect.File{f}})
}

// What is detected is allowed to be read, and nothing else; it has its origin.
func TestDetected(t *testing.T) {
	src := policyWith(`  - {file: detect.yaml}
  - detect: [pip]
  - {detect: [npm], cidrs: [10.1.0.0/16]}
defaults: {methods: [GET, POST], ports: [8080], log: request}
tests:
  - {request: "GET https://pip.example.com/simple/x/", expect: allow, rule: detect-pip-1}
  - {request: "POST https://pip.example.com/simple/x/", expect: deny, reason: method_not_allowed}
  - {request: "GET http://pip.example.com/", expect: deny, reason: port_not_allowed}
  - {request: "HEAD http://10.1.2.3:4873/x", expect: allow, rule: detect-npm-1}
`)
	src.Detect = found
	src.Files = files(map[string]string{"detect.yaml": "apiVersion: sallyport/v1\nkind: Policy\nmetadata: {name: d}\ninclude: [{detect: [pip]}]\n"})
	p, err := policyfile.ReadPolicy(src, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`origin: "/etc/pip.conf:2"`, `origin: "/etc/npmrc:1"`, "- 4873", `log: "request"`, "- 443"} {
		if !bytes.Contains(p.Effective, []byte(want)) {
			t.Errorf("the effective policy does not say %s:\n%s", want, p.Effective)
		}
	}
	if n := bytes.Count(p.Effective, []byte("detect-pip-")); n != 1 {
		t.Errorf("pip stands %d times", n)
	}
	if _, err := policyfile.ReadPolicy(policyfile.Input{Name: "e.yaml", Data: p.Effective}, nil); err != nil {
		t.Errorf("the effective policy does not read back: %v", err)
	}
	if list := p.Untested(); len(list) != 0 {
		t.Errorf("untested: %v", list)
	}
}

func TestDetectRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ include, want string }{
		"an unknown manager":   {"  - detect: [pipp]\n", `p.yaml:5:14: "pipp" is none of pip, npm, pnpm, yarn, go, cargo, apt, apk, maven, gem; did you mean "pip"?`},
		"twice":                {"  - detect: [pip, pip]\n", "pip stands twice"},
		"no list":              {"  - detect: pip\n", "it has to be a list"},
		"nothing configured":   {"  - detect: [gem]\n", "p.yaml:5:13: detecting gem: nothing configures it: write x"},
		"with a file":          {"  - {detect: [pip], file: x.yaml}\n", "one of file, preset, detect"},
		"with values":          {"  - {detect: [pip], with: {a: [b]}}\n", "with is for a preset"},
		"cidrs without detect": {"  - {preset: openai@1, cidrs: [10.0.0.0/8]}\n", "cidrs is for detect"},
		"a bad range":          {"  - {detect: [pip], cidrs: [10.0.0.1/8]}\n", "not in canonical form"},
		"other cidrs":          {"  - {detect: [pip], cidrs: [10.0.0.0/8]}\n  - {detect: [pip]}\n", "with other cidrs at p.yaml:5"},
		"a private address":    {"  - detect: [npm]\n", "10.1.2.3"},
	} {
		t.Run(name, func(t *testing.T) {
			src := policyWith(tt.include)
			src.Detect = found
			if _, err := policyfile.ReadPolicy(src, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadPolicy = %v, want it to say %q", err, tt.want)
			}
		})
	}
	if _, err := policyfile.ReadPolicy(policyWith("  - detect: [pip]\n"), nil); err == nil || !strings.Contains(err.Error(), "nothing here in which pip could be detected") {
		t.Errorf("without a detector: %v", err)
	}
}
