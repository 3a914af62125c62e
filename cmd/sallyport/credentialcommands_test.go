package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// credentialCase is a command line about a credential, and what has to come of it.
type credentialCase struct {
	args string
	code int
	says string // in the text, or in the error
	key  string // of the JSON
}

// askAll runs commands as text and as JSON. None may show the secret.
func (st *stage) askAll(stdin, secret string, list ...credentialCase) {
	st.t.Helper()
	for _, a := range list {
		for _, asJSON := range []bool{false, true} {
			args := append(strings.Fields("credential "+a.args), "--instance", st.inst.name)
			if !strings.Contains(a.args, " usage") && !strings.HasPrefix(a.args, "usage") {
				args = append(args, "--credentials", st.path("creds"))
			}
			if asJSON && strings.Contains(a.args, "-o ") {
				continue
			}
			if asJSON {
				args = append(args, "-o", "json")
			}
			var out, errs bytes.Buffer
			code := run(st.t.Context(), args, strings.NewReader(stdin), &out, &errs)
			if code != a.code {
				st.t.Errorf("%v: exit %d, want %d\n%s%s", args, code, a.code, out.String(), errs.String())
				continue
			}
			if strings.Contains(out.String()+errs.String(), secret) || stdin != "" && strings.Contains(out.String()+errs.String(), stdin) {
				st.t.Errorf("%v shows the secret: %s%s", args, out.String(), errs.String())
			}
			var fields any
			var fault struct{ Error string }
			said := errs.String()
			if asJSON && code != 0 && json.Unmarshal(errs.Bytes(), &fault) == nil {
				said = fault.Error
			}
			switch {
			case code != 0 && !strings.Contains(said, a.says):
				st.t.Errorf("%v: %s, want %q in it", args, said, a.says)
			case code != 0:
			case asJSON && (json.Unmarshal(out.Bytes(), &fields) != nil || !strings.Contains(out.String(), `"`+a.key+`"`)):
				st.t.Errorf("%v: %s, want JSON with %q", args, out.String(), a.key)
			case !asJSON && !strings.Contains(strings.Join(strings.Fields(out.String()), " "), a.says):
				st.t.Errorf("%v: %s, want %q in it", args, out.String(), a.says)
			}
		}
	}
}

// hints runs a command that fails, and wants a hint behind what it says: a command line
// that can be typed as it stands, behind what it is for.
func (st *stage) hints(args, want string) {
	st.t.Helper()
	why, command, ok := strings.Cut(want, ": ")
	if want = why + ": " + st.inst.typed(command); !ok {
		want = st.inst.typed(why)
	}
	line := append(strings.Fields("credential "+args), "--instance", st.inst.name)
	if !strings.HasPrefix(args, "usage") {
		line = append(line, "--credentials", st.path("creds"))
	}
	var out, errs bytes.Buffer
	if code := run(st.t.Context(), line, strings.NewReader(""), &out, &errs); code == 0 || !strings.HasSuffix(errs.String(), "hint: "+want+"\n") {
		st.t.Errorf("%s: exit %d: %s, want the hint %q", args, code, errs.String(), want)
	}
}

// TestCredentialCommands: each command, as text and as JSON, beside a running broker and
// when it is gone: exit codes, what is said, and never a secret.
func TestCredentialCommands(t *testing.T) {
	const secret = "secret-token-0001" // as the stage has it
	st := newStage(t)
	down := st.up()
	beside := []credentialCase{
		{"ls", 0, "api bearer", "endpoints"},
		{"show api", 0, "may go to api.example.com:443", "source"},
		{"show nobody", 2, `there is no credential "nobody"`, ""},
		{"test api", 0, "would set Authorization", "headers"},
		{"test api --path /v1/x", 2, "are for a request that is sent", ""},
		{"test nobody", 2, `there is no credential "nobody"`, ""},
		{"test api --live --path /v2/x", 1, "path_not_allowed", ""},
		{"add api", 2, "is not in the encrypted store", ""},
		{"rotate api", 0, "broker ok", "broker"},
		{"rotate nobody", 2, `there is no credential "nobody"`, ""},
		{"usage api", 0, "api: used 0 times", "runs"},
		{"usage api --since soon", 2, "soon", ""},
		{"revoke nobody", 2, `there is no credential "nobody"`, ""},
		{"revoke api", 0, "broker revoked", "broker"},
		{"test api", 1, "was revoked", ""},
		{"ls", 0, "api bearer, revoked", "revoked"},
		{"show api", 0, "rotate api makes it good again", "revoked"},
		{"rotate api", 0, "broker ok", "broker"},
		{"test api", 0, "would set Authorization", "headers"},
		{"test", 2, "takes 1 argument,", ""},
		{"ls -o yaml", 2, "yaml", ""},
	}
	st.askAll("", secret, beside...)
	for args, want := range map[string]string{
		"show nobody":                  "credential ls",
		"test nobody":                  "credential ls",
		"rotate nobody":                "credential ls",
		"revoke nobody":                "credential ls",
		"add nobody":                   "credential add nobody --type bearer --host api.example.com --env API_KEY",
		"add api --type bearer":        "credential add api",
		"test api --path /v1/x":        "credential test api --live",
		"usage api --since soon":       "credential usage api --since 7d",
		"test api --live --path /nope": "where it may go: credential show api",
	} {
		st.hints(args, want)
	}
	st.askAll("", secret, credentialCase{"revoke api", 0, "broker revoked", "broker"})
	st.hints("test api", "credential rotate api")
	st.askAll("", secret, credentialCase{"rotate api", 0, "broker ok", "broker"})
	var out, errs bytes.Buffer
	add := []string{"credential", "add", "other", "--type", "bearer", "--host", "other.example.com", "--store", st.path("store"), "--credentials", st.path("creds")}
	if code := run(t.Context(), add, strings.NewReader("another-secret-0002\n"), &out, &errs); code != 0 || strings.Contains(out.String()+errs.String(), "another-secret") {
		t.Errorf("add: exit %d: %s%s", code, out.String(), errs.String())
	}
	st.askAll("another-secret-0003\n", "another-secret-0003",
		credentialCase{"add other --store " + st.path("store"), 0, "done the secret is kept", "did"},
		credentialCase{"rotate other --store " + st.path("store"), 0, "done the secret is replaced", "did"},
		credentialCase{"revoke other --store " + st.path("store"), 0, "and the encrypted secret is wiped", "did"},
	)
	down()
	st.must(os.Remove(st.inst.brokerSocket()))
	st.askAll("", secret,
		credentialCase{"ls", 0, "api bearer", "endpoints"},
		credentialCase{"show api", 0, "may go to api.example.com:443", "source"},
		credentialCase{"usage api", 0, "api: used 0 times", "runs"},
		credentialCase{"test api", 1, "is not up", ""},
		credentialCase{"rotate api", 0, "broker not up", "broker"},
		credentialCase{"revoke api", 0, "broker not up", "broker"},
	)
}
