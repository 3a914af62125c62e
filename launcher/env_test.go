package launcher_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sallyport/control"
	"sallyport/launcher"
)

// A credential with a pair of keys has two variables; the parts of a document have
// none, and are there to be recognised.
func TestPlaceholdersInEnvironment(t *testing.T) {
	pair := control.Grant{
		Credential: "aws", Env: "AWS_ACCESS_KEY_ID", Placeholder: "AKIAPLACEHOLDER00001",
		More: []control.Value{{Env: "AWS_SECRET_ACCESS_KEY", Placeholder: "placeholder-of-the-secret"}, {Placeholder: "part-of-a-document"}},
	}
	proxy := netip.MustParseAddrPort("10.213.0.1:3128")
	env, err := launcher.RunEnvironment(proxy, "cell", "run", []control.Grant{pair}, []string{"MODE=test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"AWS_ACCESS_KEY_ID=AKIAPLACEHOLDER00001", "AWS_SECRET_ACCESS_KEY=placeholder-of-the-secret", "MODE=test"} {
		if !slices.Contains(env, want) {
			t.Errorf("%q is not in the environment", want)
		}
	}
	if text := strings.Join(env, "\n"); strings.Contains(text, "part-of-a-document") || strings.Contains(text, "\n=") {
		t.Errorf("what has no variable is in the environment:\n%s", text)
	}
	refused := []struct {
		name, want string
		change     func(*control.Grant, *[]string)
	}{
		{"the first is ours", "cannot be in a variable", func(g *control.Grant, _ *[]string) { g.Env = "HTTPS_PROXY" }},
		{"the second is ours", "cannot be in a variable", func(g *control.Grant, _ *[]string) { g.More[0].Env = "SSL_CERT_FILE" }},
		{"the second is no variable", "cannot be in a variable", func(g *control.Grant, _ *[]string) { g.More[0].Env = "A-B" }},
		{"the user sets the first", "sets it", func(_ *control.Grant, user *[]string) { *user = []string{"AWS_ACCESS_KEY_ID=x"} }},
		{"the user sets the second", "sets it", func(_ *control.Grant, user *[]string) { *user = []string{"AWS_SECRET_ACCESS_KEY=x"} }},
	}
	for _, tt := range refused {
		g, user := pair, []string(nil)
		g.More = slices.Clone(pair.More)
		tt.change(&g, &user)
		env, err := launcher.RunEnvironment(proxy, "cell", "run", []control.Grant{g}, user)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), `"aws"`) {
			t.Errorf("%s: %q, %v", tt.name, env, err)
		}
	}
}
