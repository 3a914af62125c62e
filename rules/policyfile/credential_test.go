package policyfile_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// credential is a credential file with these lines after its metadata.
func credential(lines string) []byte {
	return []byte("apiVersion: sallyport/v1\nkind: Credential\nmetadata: {name: key}\n" + lines)
}

const (
	oauth  = rest + "type: oauth2-client\n"
	aws    = rest + "type: aws-sigv4\naws-sigv4: {regions: [a], services: [s3], "
	source = "type: bearer\nendpoints: [{host: a.test}]\nsource: "
)

const rest = "endpoints: [{host: api.test}]\nsource: {file: /s/key}\n"

func TestParseCredential(t *testing.T) {
	tests := []struct {
		lines string
		want  policyfile.Scheme
	}{
		{"type: bearer\n", policyfile.Scheme{Type: policyfile.Bearer}},
		{"type: basic\nbasic: {username: bot}\n", policyfile.Scheme{Type: policyfile.Basic, Username: "bot"}},
		{"type: header\nheader: {name: x-api-key, prefix: \"Token \"}\n", policyfile.Scheme{Type: policyfile.Header, Header: "X-Api-Key", Prefix: "Token "}},
		{"type: body\nbody: {json: [a.b], form: [c], multipart: [\"d e\"]}\n", policyfile.Scheme{Type: policyfile.Body, Body: []policyfile.Field{
			{Kind: "json", Name: "a.b"}, {Kind: "form", Name: "c"}, {Kind: "multipart", Name: "d e"},
		}}},
		{"type: query\nquery: {param: key}\n", policyfile.Scheme{Type: policyfile.Query, Param: "key"}},
		{"type: github-app\ngithub-app: {app: \"1\", installation: 7, api: \"https://g.test/api/v3\", repositories: [app], permissions: {contents: read}}\n", policyfile.Scheme{
			Type: policyfile.GitHub, GitHubApp: policyfile.GitHubApp{
				App: "1", TokenURL: "https://g.test/api/v3/app/installations/7/access_tokens",
				Repositories: []string{"app"}, Permissions: map[string]string{"contents": "read"},
			},
		}},
		{"type: jwt\njwt: {algorithm: ES256, key_id: k, claims: {iss: a}}\n", policyfile.Scheme{
			Type: policyfile.JSONWebToken, JWT: policyfile.JWT{Algorithm: "ES256", KeyID: "k", Life: 300, Claims: map[string]string{"iss": "a"}},
		}},
		{"type: oauth2-client\noauth2-client: {token_url: \"https://id.test/t\", client_id: a, auth: private_key_jwt, algorithm: EdDSA, key_id: k}\n", policyfile.Scheme{
			Type: policyfile.OAuth2Client, OAuth2: policyfile.OAuth2{TokenURL: "https://id.test/t", ClientID: "a", Auth: policyfile.PrivateKeyJWT, Algorithm: "EdDSA", KeyID: "k"},
		}},
		{"type: oauth2-refresh\noauth2-refresh: {token_url: \"https://id.test/t\", auth: client_secret_post}\n", policyfile.Scheme{
			Type: policyfile.OAuth2Refresh, OAuth2: policyfile.OAuth2{TokenURL: "https://id.test/t", Auth: policyfile.ClientPost},
		}},
		{"type: oauth2-jwt-bearer\noauth2-jwt-bearer: {token_url: \"https://id.test/t\", issuer: a, algorithm: RS256, subject: b}\n", policyfile.Scheme{
			Type: policyfile.OAuth2JWT, OAuth2: policyfile.OAuth2{TokenURL: "https://id.test/t", Issuer: "a", Subject: "b", Algorithm: "RS256"},
		}},
		{"type: gcp-service-account\ngcp-service-account: {scopes: [a]}\n", policyfile.Scheme{
			Type: policyfile.GCPServiceAccount, Google: policyfile.Google{Token: policyfile.GoogleAccess},
			OAuth2: policyfile.OAuth2{TokenURL: "https://oauth2.googleapis.com/token", Scopes: []string{"a"}},
		}},
		{"type: hmac\nhmac: {header: x-sig, template: \"{{{method}}}{header:X-A}\", set: {x-t: \"{timestamp}\"}}\n", policyfile.Scheme{
			Type: policyfile.HMACSigned, HMAC: policyfile.HMAC{
				Algorithm: "sha256", Encoding: "hex", Header: "X-Sig", Time: "unix", Key: "raw",
				Template: policyfile.Template{{Text: "{"}, {Name: "method"}, {Text: "}"}, {Name: "header", Of: "X-A"}},
				Value:    policyfile.Template{{Name: "signature"}}, Set: map[string]policyfile.Template{"X-T": {{Name: "timestamp"}}},
			},
		}},
		{"type: azure-storage\nazure-storage: {account: acme1}\n", policyfile.Scheme{Type: policyfile.AzureStorage, Azure: policyfile.Azure{Account: "acme1"}}},
		{"type: azure-sas\n", policyfile.Scheme{Type: policyfile.AzureSAS}},
		{"type: azure-sas\nazure-sas: {account: acme1, scope: account, permissions: [list, update, read], services: [file, blob], resources: [object, service], ip: 203.0.113.7-203.0.113.9}\n", policyfile.Scheme{
			Type: policyfile.AzureSAS, SAS: policyfile.SAS{
				Account: "acme1", Scope: policyfile.SASAccount, Permissions: "rlu", Services: "bf", Resources: "so", Life: 300, IP: "203.0.113.7-203.0.113.9",
			},
		}},
		{"type: azure-sas\nazure-sas: {account: acme1, scope: blob, container: incoming, permissions: [write, read], life: 60}\n", policyfile.Scheme{
			Type: policyfile.AzureSAS, SAS: policyfile.SAS{Account: "acme1", Scope: policyfile.SASBlob, Container: "incoming", Permissions: "rw", Life: 60},
		}},
		{"type: mtls\n", policyfile.Scheme{Type: policyfile.ClientCert}},
		{"type: oci-registry\noci-registry: {token_url: \"https://a.test/token\", service: r.test, username: bot}\n", policyfile.Scheme{
			Type: policyfile.OCIRegistry, OCI: policyfile.OCI{TokenURL: "https://a.test/token", Service: "r.test", Username: "bot"},
		}},
		{"type: aws-sigv4\naws-sigv4: {regions: [a], services: [b], assume_role: {role: \"arn:aws:iam::123456789012:role/x\", region: a}}\n", policyfile.Scheme{
			Type: policyfile.AWSSigV4, AWS: policyfile.AWS{Regions: []string{"a"}, Services: []string{"b"}, Role: policyfile.AWSRole{
				Role: "arn:aws:iam::123456789012:role/x", Session: "sallyport", Region: "a", URL: "https://sts.a.amazonaws.com/",
			}},
		}},
		{"type: aws-sigv4\naws-sigv4: {regions: [eu-west-1], services: [s3, sts]}\n", policyfile.Scheme{
			Type: policyfile.AWSSigV4, AWS: policyfile.AWS{Regions: []string{"eu-west-1"}, Services: []string{"s3", "sts"}},
		}},
		{
			"type: oauth2-client\noauth2-client: {token_url: \"https://id.test:8443/token\", client_id: bot, scopes: [a, \"b:c\"], audience: \"https://api.test\"}\n",
			policyfile.Scheme{Type: policyfile.OAuth2Client, OAuth2: policyfile.OAuth2{
				TokenURL: "https://id.test:8443/token", ClientID: "bot", Scopes: []string{"a", "b:c"}, Audience: "https://api.test",
			}},
		},
	}
	for _, tt := range tests {
		data := credential(tt.lines + rest + "placeholder: {env: API_KEY}\n")
		if strings.Contains(tt.lines, "aws") {
			data = credential(tt.lines + rest + "placeholder: {env: API_KEY, secret_env: SECRET}\n")
		}
		c, err := policyfile.ParseCredential("c.yaml", data)
		if err != nil {
			t.Errorf("%s: %v", tt.lines, err)
			continue
		}
		if c.Name != "key" || c.Source.File != "/s/key" || c.Env != "API_KEY" || c.Where != "c.yaml:3" || c.Digest != policyfile.Digest(data) || len(c.Endpoints) != 1 {
			t.Errorf("%s: %+v", tt.lines, c)
		}
		if diff := cmp.Diff(tt.want, c.Scheme); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.lines, diff)
		}
	}
}

// TestParseKeysIn: CR-14.
func TestParseKeysIn(t *testing.T) {
	c, err := policyfile.ParseCredential("c.yaml", credential("type: bearer\n"+rest+"keys_in: {headers: [X-Old], cookies: [sid], params: [key], json: [a.b], form: [c], multipart: [d]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []policyfile.Field{{Kind: "header", Name: "X-Old"}, {Kind: "cookie", Name: "sid"}, {Kind: "param", Name: "key"}, {Kind: "json", Name: "a.b"}, {Kind: "form", Name: "c"}, {Kind: "multipart", Name: "d"}}
	if d := cmp.Diff(want, c.KeysIn); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(want, policyfile.Fields(policyfile.JoinFields(want))); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
}

func TestParseSource(t *testing.T) {
	tests := []struct {
		source string
		want   policyfile.Source
	}{
		{"{file: /s/key}", policyfile.Source{File: "/s/key"}},
		{"{env: api_KEY2}", policyfile.Source{Env: "api_KEY2"}},
		{"{systemd: api.key}", policyfile.Source{Systemd: "api.key"}},
		{"{exec: [/usr/bin/pass, show, \"a b\"]}", policyfile.Source{Exec: []string{"/usr/bin/pass", "show", "a b"}}},
		{"{file: /s/key, on_error: keep}", policyfile.Source{File: "/s/key", KeepOnError: true}},
		{"{file: /s/key, on_error: refuse}", policyfile.Source{File: "/s/key"}},
		{"{vault: {url: \"https://v.test:8200\", path: team/key, field: token, cidrs: [10.0.0.0/8], approle: {role_id: r, secret_id_file: /s/id}}}", policyfile.Source{Vault: &policyfile.Vault{
			URL: "https://v.test:8200", Mount: "secret", Path: "team/key", Field: "token", Private: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			AppRole: &policyfile.AppRole{Mount: "approle", RoleID: "r", SecretIDFile: "/s/id"},
		}}},
		{"{kubernetes: {namespace: agents, secret: s, key: k}}", policyfile.Source{Kubernetes: &policyfile.Kubernetes{
			Namespace: "agents", Secret: "s", Key: "k", API: "https://kubernetes.default.svc", TokenFile: "/var/run/secrets/kubernetes.io/serviceaccount/token",
		}}},
		{"{age: {file: /s/key.age, identity: /s/id}}", policyfile.Source{Age: &policyfile.Age{File: "/s/key.age", Identity: "/s/id"}}},
	}
	for _, tt := range tests {
		c, err := policyfile.ParseCredential("c.yaml", credential("type: bearer\nendpoints: [{host: api.test}]\nsource: "+tt.source+"\n"))
		if err != nil {
			t.Errorf("%s: %v", tt.source, err)
			continue
		}
		if diff := cmp.Diff(tt.want, c.Source, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.source, diff)
		}
	}
}

func TestCredentialErrors(t *testing.T) {
	tests := []struct {
		id, lines string
		want      []place
	}{
		{"", "", []place{{1, 1, "no type"}, {1, 1, "no endpoints"}, {1, 1, "no source"}}},
		{"", rest + "type: bearre\n", []place{{6, 7, `did you mean "bearer"?`}}},
		{"", rest + "type: mtls\nmtls: {a: b}\n", []place{{7, 1, `unknown key "mtls"`}}},
		{"JW-01", oauth + "oauth2-client: {client_id: a, token_url: \"https://id.test/t\", auth: private_key_jwt, algorithm: HS256}\n", []place{
			{7, 16, "needs the algorithm"}, {7, 97, `"HS256" is none of`},
		}},
		{"", oauth + "oauth2-client: {client_id: a, token_url: \"https://id.test/t\", key_id: k}\n", []place{{7, 16, "are for auth: private_key_jwt"}}},
		{"", rest + "type: gcp-service-account\ngcp-service-account: {token: id, scopes: [a]}\n", []place{{7, 22, "an id token has an audience"}}},
		{"", rest + "type: gcp-service-account\ngcp-service-account: {audience: a}\n", []place{{7, 22, "an access token has scopes"}}},
		{"", rest + "type: gcp-service-account\ngcp-service-account: {token: self-signed, audience: a, scopes: [b]}\n", []place{{7, 22, "either scopes or an audience"}}},
		{"", rest + "type: oauth2-jwt-bearer\noauth2-jwt-bearer: {token_url: \"https://id.test/t\", algorithm: none}\n", []place{{7, 20, "has no issuer"}, {7, 64, "is none of"}}},
		{"", aws + "assume_role: {role: agent, region: EU, duration: 60, url: \"http://sts.test/\"}}\n", []place{
			{7, 63, "the ARN of a role"}, {7, 78, "not a code"}, {7, 92, "from 900 to 43200"}, {7, 101, "not an https URL"},
		}},
		{"", rest + "type: hmac\nhmac: {header: X-S, template: \"{methd}\", value: \"v1\", set: {Host: \"{timestamp}\", x-a: \"{body}\"}}\n", []place{
			{7, 7, "value has no {signature}"}, {7, 31, "{methd} is none of"}, {7, 61, "Host belongs"}, {7, 87, "{body} is none of"},
		}},
		{"", rest + "type: hmac\nhmac: {header: X-S, template: constant, value: \"{key_id}{signature}\"}\n", []place{{7, 7, "key_id is missing"}}},
		{"", rest + "type: hmac\nhmac: {header: X-S, template: constant}\n", []place{{7, 7, "the same for every request"}}},
		{"", rest + "type: azure-storage\nazure-storage: {account: Acme}\n", []place{{7, 26, "not the name of a storage account"}}},
		{"", rest + "type: azure-sas\nazure-sas: {account: acme, scope: account, permissions: [read], container: in}\n", []place{{7, 12, "needs services and resources"}, {7, 76, "not the name of a container"}}},
		{"SG-01", rest + "type: tencent-tc3\ntencent-tc3: {services: [\"*\"]}\n", []place{{7, 26, "not a code"}}},
		{"SG-01", rest + "type: volcengine-v4\nvolcengine-v4: {services: [cv]}\n", []place{{7, 16, "has no regions"}}},
		{"", rest + "type: alibaba-acs3\nplaceholder: {env: A}\n", []place{{7, 14, "no secret_env"}}},
		{"CR-03", rest + "type: oci-registry\noci-registry: {token_url: \"http://a.test/t\", service: a, username: b}\n", []place{{7, 27, "not an https URL"}}},
		{"", rest + "type: oauth2-client\n", []place{{1, 1, "type oauth2-client needs oauth2-client: {token_url: …}"}}},
		{"", rest + "type: query\n", []place{{1, 1, "type query needs query: {param: …}"}}},
		{"SG-01", rest + "type: aws-sigv4\naws-sigv4: {regions: [\"*\"], services: [s3, s3]}\n", []place{{7, 23, "not a code"}, {7, 44, "stands twice"}}},
		{"SG-01", rest + "type: aws-sigv4\naws-sigv4: {regions: [eu-west-1]}\n", []place{{7, 12, "has no services"}}},
		{"", rest + "type: aws-sigv4\naws-sigv4: {regions: [a], services: [s3]}\nplaceholder: {env: A}\n", []place{{8, 14, "no secret_env"}}},
		{"", rest + "type: aws-sigv4\naws-sigv4: {regions: [a], services: [s3]}\nplaceholder: {env: A, secret_env: A}\n", []place{{8, 14, "one variable"}}},
		{"", rest + "type: bearer\nplaceholder: {env: A, secret_env: B}\n", []place{{7, 14, "pair of keys"}}},
		{"JW-01", rest + "type: jwt\njwt: {algorithm: none, claims: {iss: a}}\n", []place{{7, 18, `"none" is none of`}}},
		{"JW-04", rest + "type: jwt\njwt: {algorithm: es256, life: 3601, claims: {exp: \"1\", iss: a, iss: b}}\n", []place{
			{7, 18, `did you mean "ES256"?`}, {7, 31, "from 1 to 3600"}, {7, 46, "the broker's to set"}, {7, 64, "stands twice"},
		}},
		{"", rest + "type: jwt\njwt: {algorithm: ES256, life: 1h, claims: {}}\n", []place{{7, 31, "number of seconds"}, {7, 43, "claims are a mapping"}}},
		{"CR-24", rest + "type: github-app\ngithub-app: {app: \"1\", installation: 7}\n", []place{{7, 13, "has no permissions"}}},
		{"", rest + "type: github-app\ngithub-app: {app: \"1\", installation: x, repositories: [acme/app], permissions: {contents: raed}}\n", []place{
			{7, 38, "plain number"}, {7, 56, "leave its owner out"}, {7, 91, `did you mean "read"?`},
		}},
		{"CR-03", rest + "type: github-app\ngithub-app: {app: \"1\", installation: 7, api: \"http://g.test\", permissions: {contents: read}}\n", []place{{7, 46, "not an https URL"}}},
		{"", rest + "type: body\n", []place{{1, 1, "type body needs body: {json: …}"}}},
		{"", rest + "type: body\nbody: {}\n", []place{{7, 7, "names no field"}}},
		{"", rest + "type: body\nbody: {json: [\"\"]}\n", []place{{7, 7, "names no field"}, {7, 15, "empty text"}}},
		{"CR-14", rest + "type: bearer\nkeys_in: {}\n", []place{{7, 10, "names nothing"}}},
		{"CR-14", rest + "type: bearer\nkeys_in: {headers: [\"X Y\"], cookie: [a]}\n", []place{{7, 21, "not the name"}, {7, 29, `did you mean "cookies"?`}}},
		{"HT-15", rest + "type: query\nquery: {param: \"a&b\"}\n", []place{{7, 16, "not the name of a parameter"}}},
		{"", rest + "type: query\nquery: {parm: a}\n", []place{{7, 9, `did you mean "param"?`}}},
		{"", rest + "type: bearer\noauth2-client: {client_id: a}\n", []place{{7, 16, "is for type oauth2-client"}}},
		{"CR-03", oauth + "oauth2-client: {client_id: a, token_url: \"http://id.test/token\"}\n", []place{{7, 42, "not an https URL"}}},
		{"NM-09", oauth + "oauth2-client: {client_id: a, token_url: \"https://id.test@evil.test/token\"}\n", []place{{7, 42, "not an https URL"}}},
		{"NM-03", oauth + "oauth2-client: {client_id: a, token_url: \"https://ID.test:443/token\"}\n", []place{{7, 42, `write "https://id.test/token"`}}},
		{"NM-04", oauth + "oauth2-client: {client_id: a, token_url: \"https://id..test/token\"}\n", []place{{7, 42, "not a host"}}},
		{"CN-17", oauth + "oauth2-client: {client_id: a, token_url: \"https://sallyport.internal/token\"}\n", []place{{7, 42, "reserved"}}},
		{"", oauth + "oauth2-client: {client_id: a, token_url: \"https://id.test/t\", scopes: [a b, c, c]}\n", []place{{7, 72, "not one scope"}, {7, 80, "stands twice"}}},
		{"", rest + "type: header\n", []place{{1, 1, "type header needs header: {name: …}"}}},
		{"", rest + "type: basic\nheader: {name: X}\n", []place{{1, 1, "type basic needs basic: {username: …}"}, {7, 9, "header is for type header"}}},
		{"", rest + "type: basic\nbasic: {username: \"a:b\"}\n", []place{{7, 19, "no colon"}}},
		{"CR-12", rest + "type: basic\nbasic: {username: \"é\"}\n", []place{{7, 19, "not printable ASCII"}}},
		{"CR-12", rest + "type: header\nheader: {name: X, prefix: \"a\\r\\nX-Evil: 1\"}\n", []place{{7, 27, "not printable ASCII"}}},
		{"HT-09", rest + "type: header\nheader: {name: connection}\n", []place{{7, 16, "Connection belongs"}}},
		{"", rest + "type: header\nheader: {name: Host}\n", []place{{7, 16, "Host belongs"}}},
		{"", rest + "type: header\nheader: {name: \"X Y\"}\n", []place{{7, 16, "not the name of a header"}}},
		{"", rest + "type: bearer\nplaceholder: {env: api-key}\n", []place{{7, 20, "not a variable"}}},
		{"", rest + "type: bearer\nplaceholder: {env: LD_PRELOAD}\n", []place{{7, 20, "meaning of its own"}}},
		{"", rest + "type: bearer\nplaceholder: {env: HTTPS_PROXY}\n", []place{{7, 20, "meaning of its own"}}},
		{"CR-21", "type: bearer\nendpoints: [{host: \"*.wild.test\"}]\nsource: {file: /s}\n", []place{{5, 20, "exact hosts"}}},
		{"CF-01", "type: bearer\nendpoints: []\nsource: {file: /s}\n", []place{{5, 12, "empty list"}}},
		{"", "type: bearer\nendpoints: [{ports: [443]}]\nsource: {file: /s}\n", []place{{5, 13, "has no host"}}},
		{"", "type: bearer\nendpoints: [{host: sallyport.internal}]\nsource: {file: /s}\n", []place{{5, 20, "reserved"}}},
		{"", "type: bearer\nendpoints: [{host: A.test, methods: [get], paths: [x], port: 1}]\nsource: {file: /s}\n", []place{
			{5, 20, `write "a.test"`}, {5, 38, `write "GET"`}, {5, 52, "slash"}, {5, 56, `did you mean "ports"?`}, {5, 62, "has to be a list"},
		}},
		{"", "type: bearer\nendpoints: [{host: a.test}]\nsource: {file: s/key}\n", []place{{6, 16, "not an absolute path"}}},
		{"", "type: bearer\nendpoints: [{host: a.test}]\nsource: {file: /s/../key}\n", []place{{6, 16, `write "/key"`}}},
		{"", source + "{vault: {url: \"https://v.test\", path: a, field: b}}\n", []place{{6, 17, "one of token_file, approle and kubernetes, and has 0"}}},
		{"", source + "{vault: {url: \"https://v.test\", path: a, field: b, token_file: /t, approle: {role_id: r, secret_id_file: /s}}}\n", []place{{6, 17, "and has 2"}}},
		{"CR-03", source + "{vault: {url: \"http://v.test\", path: a, field: b, token_file: /t}}\n", []place{{6, 23, "not an https URL"}}},
		{"", source + "{vault: {url: \"https://v.test/ui\", path: a, field: b, token_file: /t}}\n", []place{{6, 23, "has a path"}}},
		{"", source + "{vault: {url: \"https://v.test\", path: a/../b, field: b, token_file: /t}}\n", []place{{6, 47, "not a path"}}},
		{"", source + "{kubernetes: {secret: s, key: k}}\n", []place{{6, 22, "needs namespace and secret, or mount"}}},
		{"", source + "{kubernetes: {mount: /m, key: k, secret: s}}\n", []place{{6, 22, "not both"}}},
		{"", source + "{kubernetes: {mount: /m, key: ../k}}\n", []place{{6, 39, "not a name"}}},
		{"CR-11", source + "{file: /s, on_error: open}\n", []place{{6, 30, "refuse, keep"}}},
		{"", source + "{on_error: keep}\n", []place{{6, 9, "source is empty"}}},
		{"", source + "{env: A-B}\n", []place{{6, 15, "not the name of a variable"}}},
		{"", source + "{fil: /s}\n", []place{{6, 10, `did you mean "file"?`}}},
		{"", source + "{file: /s, env: A}\n", []place{{6, 9, "one source, not 2"}}},
		{"", source + "{}\n", []place{{6, 9, "source is empty"}}},
		{"", source + "{systemd: ../x}\n", []place{{6, 19, "not the name of a systemd"}}},
		{"", source + "{exec: [pass, show]}\n", []place{{6, 17, "absolute path of a command"}}},
		{"", source + "{exec: /bin/pass}\n", []place{{6, 16, "has to be a list"}}},
		{"", source + "{age: {file: key.age}}\n", []place{{6, 15, "has no identity"}, {6, 22, "not an absolute path"}}},
		{"", rest + "type: bearer\nplaceholder: {env: A, file: true}\n", []place{{7, 14, "read a key file"}}},
		{"CR-30", rest + "type: bearer\nsecret: abc\n", []place{{7, 1, `unknown key "secret"`}}},
	}
	for _, tt := range tests {
		c, err := policyfile.ParseCredential("c.yaml", credential(tt.lines))
		if c != nil || err == nil {
			t.Errorf("%s %s loads", tt.id, tt.lines)
			continue
		}
		checkPlaces(t, tt.id+" "+tt.lines, errorsOf(t, err), tt.want)
	}
	if _, err := policyfile.ParseCredential("p.yaml", []byte(head+"rules: []\n")); err == nil || !strings.Contains(err.Error(), `kind is "Policy"`) {
		t.Errorf("a policy is read as a credential: %v", err)
	}
}

// TestPermits: the second lock, as the broker asks it.
func TestPermits(t *testing.T) {
	c, err := policyfile.ParseCredential("c.yaml", credential(`type: bearer
endpoints:
  - {host: api.test, methods: [GET, POST], paths: ["/v1/**"]}
  - {host: any.test, ports: [8443]}
source: {file: /s}
`))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		endpoint, method, path string
		want                   bool
	}{
		{"api.test:8443", "GET", "/v1/x", false},
		{"evil.test:443", "GET", "/v1/x", false},
		{"x.api.test:443", "GET", "/v1/x", false},
		{"api.test:443", "DELETE", "/v1/x", false},
		{"api.test:443", "get", "/v1/x", false},
		{"api.test:443", "GET", "/v2/x", false},
		{"api.test:443", "GET", "/v1/../x", false},
		{"any.test:443", "GET", "/", false},
		{"any.test:8443", "", "/", false},
		{"any.test:8443", "GET", "", false},
		{"api.test:443", "GET", "/v1/x", true},
		{"api.test:443", "POST", "/v1", true},
		{"any.test:8443", "PURGE", "/a/../b", true},
	}
	for _, tt := range tests {
		e, err := target.ParseAuthority(tt.endpoint, 0)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := target.ParsePath(tt.path)
		if got := c.Permits(e, tt.method, p); got != tt.want {
			t.Errorf("Permits(%s %s%s) = %v, want %v", tt.method, tt.endpoint, tt.path, got, tt.want)
		}
	}
	if (&policyfile.Credential{Endpoints: []policyfile.Endpoint{{Ports: []uint16{443}}}}).Permits(target.Endpoint{Port: 443}, "GET", target.Path{}) {
		t.Error("the zero endpoint permits the zero request")
	}
}

func TestParseGateway(t *testing.T) {
	text := `apiVersion: sallyport/v1
kind: Gateway
metadata: {name: lab, owner: ops}
hosts:
  api.test: [93.184.216.34, "2606:4700::1"]
  bücher.test: [93.184.216.35]
upstream_ca: [/etc/ca.pem]
resolvers: [192.0.2.53, "192.0.2.54:5353", "2001:db8::53", "tls://192.0.2.55#dns.test", "tls://[2001:db8::54]:8853#dns.test"]
upstream_proxy: {address: "192.0.2.80:3128", user: corp, password_file: /etc/pw}
log:
  durability: disk
  keep: 90d
  anchors: [{file: /mnt/a}, {command: [/bin/keep, x]}, {url: "https://a.test/checkpoint"}]
  capture: {recipient: age1x, size: 32KiB, headers: [X-Session], fields: [password]}
credentials: /etc/sallyport/credentials
metrics: "127.0.0.1:9464"
`
	g, err := policyfile.ParseGateway("g.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string][]netip.Addr{}
	for n, list := range g.Hosts {
		hosts[n.String()] = list
	}
	want := map[string][]netip.Addr{
		"api.test":           {netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2606:4700::1")},
		"xn--bcher-kva.test": {netip.MustParseAddr("93.184.216.35")},
	}
	byText := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(want, hosts, byText); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	var resolvers []string
	for _, r := range g.Resolvers {
		resolvers = append(resolvers, strings.TrimSuffix(r.Addr.String()+" "+r.TLSName, " "))
	}
	if diff := cmp.Diff([]string{
		"192.0.2.53:53", "192.0.2.54:5353", "[2001:db8::53]:53", "192.0.2.55:853 dns.test", "[2001:db8::54]:8853 dns.test",
	}, resolvers); diff != "" {
		t.Errorf("resolvers (-want +got):\n%s", diff)
	}
	wantProxy := policyfile.UpstreamProxy{Addr: netip.MustParseAddrPort("192.0.2.80:3128"), User: "corp", PasswordFile: "/etc/pw"}
	if g.Proxy == nil || *g.Proxy != wantProxy {
		t.Errorf("proxy %+v, want %+v", g.Proxy, wantProxy)
	}
	if g.Name != "lab" || g.Log.Durability != policyfile.DurableDisk || g.Credentials != "/etc/sallyport/credentials" || len(g.UpstreamCA) != 1 ||
		g.Metrics.String() != "127.0.0.1:9464" {
		t.Errorf("gateway: %+v", g)
	}
	wantLog := policyfile.Log{
		Durability: policyfile.DurableDisk, Keep: 90 * 24 * 3600,
		Anchors: []policyfile.Anchor{{File: "/mnt/a"}, {Command: []string{"/bin/keep", "x"}}, {URL: "https://a.test/checkpoint"}},
		Capture: policyfile.Capture{Recipient: "age1x", Size: 32 << 10, Headers: []string{"X-Session"}, Fields: []string{"password"}},
	}
	if diff := cmp.Diff(wantLog, g.Log); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	least, err := policyfile.ParseGateway("g.yaml", []byte("apiVersion: sallyport/v1\nkind: Gateway\n"))
	if err != nil || least.Log.Durability != policyfile.DurableProcess || len(least.Hosts) != 0 || least.Metrics.IsValid() {
		t.Errorf("the least gateway: %+v, %v", least, err)
	}
}

func TestGatewayErrors(t *testing.T) {
	const start = "apiVersion: sallyport/v1\nkind: Gateway\n"
	tests := []struct {
		lines string
		want  []place
	}{
		{"hosts: [a.test]\n", []place{{3, 8, "a list; it has to be a mapping"}}},
		{"hosts: {A.test: [1.2.3.4], \"*.b.test\": [1.2.3.4], 1.2.3.4: [1.2.3.4]}\n", []place{{3, 9, `write "a.test"`}, {3, 28, "hosts are names"}, {3, 51, "hosts are names"}}},
		{"hosts: {a.test: [], b.test: 1.2.3.4, c.test: [x, 1.2.3.4, 1.2.3.4]}\n", []place{{3, 17, "empty list"}, {3, 29, "has to be a list"}, {3, 47, "not an address"}, {3, 59, "stands twice"}}},
		{"hosts: {a.test: [1.2.3.4], a.test: [1.2.3.5]}\n", []place{{3, 28, "stands twice"}}},
		{"hosts: {sallyport.internal: [1.2.3.4]}\n", []place{{3, 9, "reserved"}}},
		{"upstream_ca: [ca.pem]\n", []place{{3, 15, "not an absolute path"}}},
		{"resolvers: [dns.test, \"1.2.3.4:0\", \"fe80::1%eth0\"]\n", []place{{3, 13, "not the address"}, {3, 23, "not the address"}, {3, 36, "not the address"}}},
		{"resolvers: [\"tls://192.0.2.53\", \"tls://dns.test#dns.test\", \"tls://192.0.2.53#\"]\n", []place{{3, 13, "not the address"}, {3, 33, "not the address"}, {3, 60, "not the address"}}},
		{"upstream_proxy: {user: a, password_file: /p}\n", []place{{3, 17, "address"}}},
		{"upstream_proxy: {address: \"192.0.2.80:3128\", user: a}\n", []place{{3, 17, "go together"}}},
		{"upstream_proxy: {address: \"proxy.test:3128\"}\n", []place{{3, 27, "not an address and a port"}}},
		{"upstream_proxy: {address: \"192.0.2.80:3128\", user: \"a:b\", password_file: /p}\n", []place{{3, 52, "no colon"}}},
		{"log: {durability: none}\n", []place{{3, 19, "none of process, disk"}}},
		{"log: disk\n", []place{{3, 6, "a mapping with durability"}}},
		{"log: {keep: 23h}\n", []place{{3, 13, "of a day or more"}}},
		{"log: {keep: 90}\n", []place{{3, 13, "it has to be text"}}},
		{"log: {keep: 090d}\n", []place{{3, 13, "not a time to keep"}}},
		{"log: {anchors: [{file: a}, {}, {file: /a, url: \"https://a.test/\"}]}\n", []place{{3, 24, "not an absolute path"}, {3, 28, "one of file, command and url"}, {3, 32, "one of file, command and url"}}},
		{"log: {anchors: [{command: [keep]}, {url: \"http://a.test/\"}]}\n", []place{{3, 28, "not the absolute path"}, {3, 42, "not an https URL"}}},
		{"log: {capture: {size: 1GiB}}\n", []place{{3, 16, "needs a recipient"}, {3, 23, "of at most 16MiB"}}},
		{"credentials: creds\n", []place{{3, 14, "not an absolute path"}}},
		{"metrics: \"127.0.0.1\"\n", []place{{3, 10, "not an address and a port"}}},
		{"metrics: \"localhost:9464\"\n", []place{{3, 10, "not an address and a port"}}},
		{"metrics: \"127.0.0.1:0\"\n", []place{{3, 10, "not an address and a port"}}},
		{"listen: 0.0.0.0\n", []place{{3, 1, `unknown key "listen"`}}},
	}
	for _, tt := range tests {
		g, err := policyfile.ParseGateway("g.yaml", []byte(start+tt.lines))
		if g != nil || err == nil {
			t.Errorf("%s loads", tt.lines)
			continue
		}
		checkPlaces(t, tt.lines, errorsOf(t, err), tt.want)
	}
}

func FuzzParseCredential(f *testing.F) {
	f.Add(readFile(f, "stripe.yaml"))
	f.Add(credential("type: header\nheader: {name: x}\n" + rest))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := policyfile.ParseCredential("c.yaml", data)
		if (c == nil) == (err == nil) {
			t.Fatalf("ParseCredential = %v, %v", c, err)
		}
		if g, err := policyfile.ParseGateway("g.yaml", data); (g == nil) == (err == nil) {
			t.Fatalf("ParseGateway = %v, %v", g, err)
		}
	})
}
