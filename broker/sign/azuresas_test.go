package sign_test

import (
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/rules/policyfile"
)

// sasVector is a shared access signature as Azure's own SDK made it.
type sasVector struct {
	Source, Name, Scope, Permissions, Services, Resources, Container, IP string
	Life                                                                 int
	Now, Path, Want                                                      string
}

func (v sasVector) scheme(t *testing.T) sign.Scheme {
	t.Helper()
	s, err := sign.New(policyfile.Scheme{Type: policyfile.AzureSAS, SAS: policyfile.SAS{
		Account: "devstoreaccount1", Scope: v.Scope, Permissions: v.Permissions, Services: v.Services, Resources: v.Resources,
		Container: v.Container, Life: v.Life, IP: v.IP,
	}}, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestMadeSAS: testdata/azuresas.json holds tokens that Azure's SDK made of an account's
// key. Ours are the same, octet for octet.
func TestMadeSAS(t *testing.T) {
	data, err := os.ReadFile("testdata/azuresas.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []sasVector
	if err := json.Unmarshal(data, &list); err != nil || len(list) < 7 {
		t.Fatalf("%d vectors, %v", len(list), err)
	}
	key := vendors["azure-storage"].keys
	for _, v := range list {
		want, err := url.ParseQuery(v.Want)
		if err != nil {
			t.Fatal(err)
		}
		s := v.scheme(t)
		r := signRequest(t, "GET", "devstoreaccount1.blob.core.windows.net", v.Path, "")
		if r.Now, err = time.Parse(time.RFC3339, v.Now); err != nil {
			t.Fatal(err)
		}
		for _, secretText := range []string{key, "AccountName=devstoreaccount1;AccountKey=" + key} {
			ch, err := s.Sign(t.Context(), secret.New([]byte(secretText)), r)
			if err != nil {
				t.Fatalf("%s: %v", v.Name, err)
			}
			got := url.Values{}
			for name, value := range ch.Query {
				got.Set(name, value)
			}
			if got.Encode() != want.Encode() || len(ch.Expose) != 1 || ch.Expose[0] != want.Get("sig") || len(ch.Set)+len(ch.Remove) > 0 {
				t.Errorf("%s:\n got %s, to hide %q\nwant %s", v.Name, got.Encode(), ch.Expose, want.Encode())
			}
		}
		// Another key, another second: nobody's signature fits.
		other := strings.Replace(key, "Eby8", "Eby9", 1)
		if ch, err := s.Sign(t.Context(), secret.New([]byte(other)), r); err != nil || ch.Query["sig"] == want.Get("sig") {
			t.Errorf("%s: another key has the same signature, %v", v.Name, err)
		}
		r.Now = r.Now.Add(time.Second)
		if ch, err := s.Sign(t.Context(), secret.New([]byte(key)), r); err != nil || ch.Query["sig"] == want.Get("sig") || ch.Query["se"] == want.Get("se") {
			t.Errorf("%s: a second later the token is the same, %v", v.Name, err)
		}
	}
}

// TestMadeSASIsForOneThing: a token is made for what the file says, and for nothing
// beside it that the path of a request could lead to.
func TestMadeSASIsForOneThing(t *testing.T) {
	tests := []struct{ scope, path, want string }{
		{"container", "/other/x", `not for container "incoming"`},
		{"container", "/incoming2", `not for container "incoming"`},
		{"container", "/", `not for container "incoming"`},
		{"container", "/incoming", ""},
		{"container", "/incoming/a/b", ""},
		{"blob", "/other/x", `not for container "incoming"`},
		{"blob", "/incoming", `names no blob of container "incoming"`},
		{"blob", "/incoming/", `names no blob of container "incoming"`},
		{"blob", "/incoming/a%5Cb", "has a backslash"},
		{"blob", "/incoming/a/b", ""},
	}
	for _, tt := range tests {
		s := sasVector{Scope: tt.scope, Permissions: "r", Container: "incoming", Life: 300}.scheme(t)
		r := signRequest(t, "GET", "devstoreaccount1.blob.core.windows.net", tt.path, "")
		r.Now = noon
		ch, err := s.Sign(t.Context(), secret.New([]byte(vendors["azure-storage"].keys)), r)
		switch {
		case tt.want == "" && (err != nil || ch.Query["sig"] == ""):
			t.Errorf("%s %s: %v", tt.scope, tt.path, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || len(ch.Query) > 0):
			t.Errorf("%s %s: %v, %v, want %q", tt.scope, tt.path, ch, err, tt.want)
		}
	}
}

// TestMadeSASDocument: what the sandbox gets says the same, and is no key.
func TestMadeSASDocument(t *testing.T) {
	key := vendors["azure-storage"].keys
	s := sasVector{Scope: "account", Permissions: "rl", Services: "bq", Resources: "o", Life: 300, IP: "203.0.113.7"}.scheme(t)
	text, id, err := s.(sign.Documenter).Document(secret.New([]byte(key)), "PLACE+HOLDER")
	if want := "se=2100-01-01T00%3A00%3A00Z&sig=PLACE%2BHOLDER&sip=203.0.113.7&sp=rl&spr=https&srt=o&ss=bq&sv=2020-12-06"; err != nil || text != want || id != "PLACE+HOLDER" {
		t.Errorf("document %q, %q, %v, want %q", text, id, err, want)
	}
	shapes, err := s.(sign.Shaper).Shapes(secret.New([]byte(key)))
	if err != nil || len(shapes) != 1 || len(shapes[0]) != 44 || strings.Contains(key, shapes[0]) {
		t.Errorf("shapes %q, %v", shapes, err)
	}
	for _, bad := range []string{"sv=2022-11-02&sig=abc", "short", "AccountName=other;AccountKey=" + key} {
		_, _, undocumented := s.(sign.Documenter).Document(secret.New([]byte(bad)), "x")
		_, unsigned := s.Sign(t.Context(), secret.New([]byte(bad)), sign.Request{})
		if checked := s.Check(secret.New([]byte(bad))); checked == nil || undocumented == nil || unsigned == nil || strings.Contains(checked.Error(), key) {
			t.Errorf("%.20q: Check = %v, Document = %v, Sign = %v", bad, checked, undocumented, unsigned)
		}
	}
}

// TestMadeSASSettings: what the file's reader refuses is refused here too.
func TestMadeSASSettings(t *testing.T) {
	good := policyfile.SAS{Account: "acme", Scope: "container", Container: "in", Permissions: "r", Life: 300}
	tests := map[string]func(*policyfile.SAS){
		"no account":              func(a *policyfile.SAS) { a.Account = "" },
		"no scope":                func(a *policyfile.SAS) { a.Scope = "" },
		"unknown scope":           func(a *policyfile.SAS) { a.Scope = "everything" },
		"no permission":           func(a *policyfile.SAS) { a.Permissions = "" },
		"no end":                  func(a *policyfile.SAS) { a.Life = 0 },
		"no container":            func(a *policyfile.SAS) { a.Container = "" },
		"services of a container": func(a *policyfile.SAS) { a.Services = "b" },
		"account of a container":  func(a *policyfile.SAS) { a.Scope, a.Services, a.Resources = "account", "b", "o" },
		"account, no services":    func(a *policyfile.SAS) { a.Scope, a.Container, a.Resources = "account", "", "o" },
		"account, no resources":   func(a *policyfile.SAS) { a.Scope, a.Container, a.Services = "account", "", "b" },
	}
	for name, spoil := range tests {
		a := good
		spoil(&a)
		if _, err := sign.New(policyfile.Scheme{Type: policyfile.AzureSAS, SAS: a}, sign.Config{}); err == nil || !strings.Contains(err.Error(), "needs an account") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := sign.New(policyfile.Scheme{Type: policyfile.AzureSAS, SAS: good}, sign.Config{}); err != nil {
		t.Errorf("twin: %v", err)
	}
}
