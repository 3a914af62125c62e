package launcher_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sallyport/control"
	"sallyport/launcher"
)

// TestDocuments: a key file is a file inside, and its variable holds the path.
func TestDocuments(t *testing.T) {
	grants := []control.Grant{
		{Credential: "gcp", Placeholder: "token", More: []control.Value{{Env: "GOOGLE_APPLICATION_CREDENTIALS", Placeholder: `{"type":"service_account"}`, ID: "1", File: true}}},
		{Credential: "azure", Placeholder: "key", More: []control.Value{{Env: "AZURE_STORAGE_CONNECTION_STRING", Placeholder: "AccountKey=key", ID: "key"}}},
	}
	env, err := launcher.RunEnvironment(netip.MustParseAddrPort("10.213.0.1:3128"), "cell", "run", grants, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"GOOGLE_APPLICATION_CREDENTIALS=/etc/sallyport/credentials/gcp", "AZURE_STORAGE_CONNECTION_STRING=AccountKey=key"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	etc := t.TempDir()
	if err := launcher.WriteDocuments(etc, grants); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(etc, "credentials", "gcp")); err != nil || string(got) != `{"type":"service_account"}` {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if left, err := os.ReadDir(filepath.Join(etc, "credentials")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if _, err := launcher.RunEnvironment(netip.MustParseAddrPort("10.213.0.1:3128"), "cell", "run", grants, []string{"GOOGLE_APPLICATION_CREDENTIALS=/x"}); err == nil {
		t.Error("the user's variable goes over the credential's")
	}
}
