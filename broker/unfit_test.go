package broker_test

import (
	"encoding/base64"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// TestRequestThatASchemeCannotSign is told apart from a secret that cannot be read just
// now: who waits and asks again would ask for ever.
func TestRequestThatASchemeCannotSign(t *testing.T) {
	tests := []struct {
		name, doc, secret, url string
		want                   rules.Reason // none: it is signed
	}{
		{"SAS for its container", sasDoc, azureKey(), "https://acme.blob.core.windows.net/incoming/a", ""},
		{"SAS for another container", sasDoc, azureKey(), "https://acme.blob.core.windows.net/other/a", rules.CredentialMismatch},
		{"SAS for no blob", sasDoc, azureKey(), "https://acme.blob.core.windows.net/incoming", rules.CredentialMismatch},
		{"SAS with a secret that is no key", sasDoc, "no-key-of-an-account", "https://acme.blob.core.windows.net/incoming/a", rules.CredentialUnavail},
		{"one region", awsDoc("eu-west-1"), awsLines, "https://acme.blob.core.windows.net/x", ""},
		{"which of two regions is not said", awsDoc("eu-west-1, eu-west-2"), awsLines, "https://acme.blob.core.windows.net/x", rules.CredentialMismatch},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "secret")
			writeSecret(t, file, azureKey()) // the grant needs a good one
			if strings.Contains(tt.doc, "aws") {
				writeSecret(t, file, tt.secret)
			}
			c, err := policyfile.ParseCredential("x.yaml", []byte("apiVersion: sallyport/v1\nkind: Credential\nmetadata: {name: x}\nendpoints: [{host: acme.blob.core.windows.net}]\nsource: {file: "+file+"}\n"+tt.doc))
			if err != nil {
				t.Fatal(err)
			}
			k := newKit(t)
			k.stop()
			k.creds = []policyfile.Credential{*c}
			k.start()
			k.grant("cell1", "run1", "x")
			writeSecret(t, file, tt.secret)
			r := request("GET", tt.url)
			err = k.client.Inject(t.Context(), passFor(t, "x", r), r)
			denied, ok := errors.AsType[*gate.DeniedError](err)
			if tt.want == "" && err != nil || tt.want != "" && (!ok || denied.Reason != tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

const (
	sasDoc   = "type: azure-sas\nazure-sas: {account: acme, scope: blob, container: incoming, permissions: [read]}\n"
	awsLines = "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY0\n"
)

func awsDoc(regions string) string {
	return "type: aws-sigv4\naws-sigv4: {regions: [" + regions + "], services: [s3]}\n"
}

// azureKey is a key as Azure gives it to an account.
func azureKey() string { return base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 64))) }
