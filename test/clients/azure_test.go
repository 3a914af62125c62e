package clients_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const (
	azureAccount = "acmereports"
	azureHost    = azureAccount + ".blob.core.windows.net"
	azureSecret  = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
	azureString  = "DefaultEndpointsProtocol=https;AccountName=" + azureAccount + ";AccountKey=" + azureSecret + ";EndpointSuffix=core.windows.net"
	azureSASDoc  = "type: azure-sas\nplaceholder: {env: AZURE_STORAGE_SAS_TOKEN}"
)

// azureMade is a credential whose tokens the broker makes.
func azureMade(settings string) string {
	return azureSASDoc + "\nazure-sas: {account: " + azureAccount + ", " + settings + "}"
}

// newAzure is a cell with a grant for the account.
func newAzure(t *testing.T, o *vendorOrigin, doc, secret string) *gateway {
	t.Helper()
	other, _ := loot()
	return newGateway(t, []origin{{host: azureHost, handler: o}, other}, []credential{{name: "azure", host: azureHost, doc: doc, secret: secret}})
}

// TestAzureSDK: Azure's SDK puts, gets and lists blobs with a connection string and with
// shared access signatures, made and given; a server that verifies with Azure's code is
// the judge.
func TestAzureSDK(t *testing.T) {
	sdk := buildSDK(t)
	o := startOrigin(t, sdk, "azure", azureAccount, azureSecret, "")
	given := azureGiven(t, sdk)
	for name, c := range map[string]struct{ doc, secret string }{
		"connection string": {"type: azure-storage\nazure-storage: {account: " + azureAccount + "}\nplaceholder: {env: AZURE_STORAGE_CONNECTION_STRING}", azureString},
		"made, container":   {azureMade("scope: container, container: incoming, permissions: [read, write, list]"), azureSecret},
		"made, account":     {azureMade("scope: account, services: [blob], resources: [container, object], permissions: [read, write, list], life: 60, ip: 127.0.0.0-127.255.255.255"), azureString},
		"given":             {azureSASDoc, given},
	} {
		t.Run(name, func(t *testing.T) {
			o.taken()
			g := newAzure(t, o, c.doc, c.secret)
			g.must("", sdk, "azure-put", azureAccount, "incoming", "dir/a b%ü+"+name, "some text")
			got := g.must("", sdk, "azure-get", azureAccount, "incoming", "dir/a b%ü+"+name)
			list := g.must("", sdk, "azure-list", azureAccount, "incoming")
			if answers := o.taken(); got != "some text" || !strings.Contains(list, "dir/a b%ü+"+name+"\n") || !slices.Equal(answers, []string{"PUT 201", "GET 200", "GET 200"}) {
				t.Errorf("got %q, listed %q, the server answered %q", got, list, answers)
			}
			g.holdsNone(azureSecret)
			azureMisused(t, g, sdk, o)
		})
		t.Run(name+", wrong key", func(t *testing.T) {
			o.taken()
			g := newAzure(t, o, c.doc, strings.NewReplacer("Eby8", "Eby9", "sig=", "sig=AAAA").Replace(c.secret))
			out, err := g.command("", sdk, "azure-get", azureAccount, "incoming", "x")
			if got := o.taken(); err == nil || !slices.Equal(got, []string{"GET 403"}) || !slices.Equal(g.reasons(), []string{"allowed"}) {
				t.Errorf("the server answered %q, %v, refusals %q, %s", got, err, g.reasons(), out)
			}
		})
	}
}

// azureGiven is a token that Azure's SDK made.
func azureGiven(t *testing.T, sdk string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), sdk, "azure-sas", azureAccount, "incoming")
	cmd.Env = []string{"SDK_KEY=" + azureSecret}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// azureMisused sends the placeholder elsewhere, and somebody's own token here.
func azureMisused(t *testing.T, g *gateway, sdk string, o *vendorOrigin) {
	t.Helper()
	value := g.env[len(g.env)-1]
	for _, before := range []string{"AccountKey=", "sig="} {
		if _, after, ok := strings.Cut(value, before); ok {
			value = after
		}
	}
	value, _, _ = strings.Cut(value, ";")
	value, _, _ = strings.Cut(value, "&")
	if got := g.must("", "curl", "-sS", "-o", "out", "-w", "%{http_code}", "https://other.test/", "-H", "X-Note: "+value); got != "403" || !slices.Contains(g.reasons(), "placeholder_leak") {
		t.Errorf("the placeholder %.8s… elsewhere: %s, refusals %q", value, got, g.reasons())
	}
	g.env = append(g.env, "AZURE_STORAGE_CONNECTION_STRING=", "AZURE_STORAGE_SAS_TOKEN=sv=2020-12-06&sr=c&sp=r&se=2100-01-01T00%3A00%3A00Z&sig=YXR0YWNrZXJzIHNpZ25hdHVyZSBvZiAzMiBvY3RldHM%3D")
	if out, err := g.command("", sdk, "azure-get", azureAccount, "incoming", "x"); err == nil || !slices.Contains(g.reasons(), "foreign_credential") || len(o.taken()) > 0 {
		t.Errorf("SG-07 another's token: %v, refusals %q, %s", err, g.reasons(), out)
	}
}

// TestMadeSASIsNarrow: a token for one blob reads that blob, and does nothing else: the
// broker makes none for another container, and the server refuses what it does not permit.
func TestMadeSASIsNarrow(t *testing.T) {
	sdk := buildSDK(t)
	o := startOrigin(t, sdk, "azure", azureAccount, azureSecret, "")
	t.Run("put", func(t *testing.T) {
		newAzure(t, o, azureMade("scope: blob, container: incoming, permissions: [write]"), azureSecret).must("", sdk, "azure-put", azureAccount, "incoming", "dir/x", "some text")
	})
	g := newAzure(t, o, azureMade("scope: blob, container: incoming, permissions: [read]"), azureSecret)
	if got := g.must("", sdk, "azure-get", azureAccount, "incoming", "dir/x"); got != "some text" {
		t.Errorf("got %q", got)
	}
	o.taken()
	if out, err := g.command("", sdk, "azure-put", azureAccount, "incoming", "dir/x", "other text"); err == nil || !slices.Equal(o.taken(), []string{"PUT 403"}) || !slices.Equal(g.reasons(), []string{"allowed"}) {
		t.Errorf("a write: %v, refusals %q, %s", err, g.reasons(), out)
	}
	for _, args := range [][]string{{"azure-list", azureAccount, "incoming"}, {"azure-get", azureAccount, "other", "x"}} {
		if out, err := g.command("", sdk, args...); err == nil || !slices.Contains(g.reasons(), "credential_mismatch") || len(o.taken()) > 0 {
			t.Errorf("%q: %v, refusals %q, %s", args, err, g.reasons(), out)
		}
	}
	g.holdsNone(azureSecret)
}
