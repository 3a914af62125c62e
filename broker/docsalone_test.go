package broker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/rules/policyfile"
)

// firstMessageExample is a credential that goes into the first message of a WebSocket: a
// test of its own (TestFirstMessageAtAnOrigin) sends one. Here it is granted.
func firstMessageExample(t *testing.T, c policyfile.Credential) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	writeSecret(t, file, plain)
	c.Source = policyfile.Source{File: file}
	if f := kitFor(t, c, nil).grant("cell1", "run1", c.Name); len(f.Grants) != 1 || f.Grants[0].Env != "REALTIME_TOKEN" {
		t.Errorf("granted %+v", f.Grants)
	}
}

// handshakeExample has a server of crypto/tls demand the certificate. The broker signs;
// what the gateway has can show nothing by itself.
func handshakeExample(t *testing.T, c policyfile.Credential) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spec := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "agent"}, NotBefore: epoch, NotAfter: epoch.Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, spec, spec, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "secret")
	writeSecret(t, file, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))+pemText(t, key))
	c.Source = policyfile.Source{File: file}
	k := kitFor(t, c, nil)
	k.grant("cell1", "run1", c.Name)

	pool := x509.NewCertPool()
	pool.AddCert(cert)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, Time: func() time.Time { return epoch }}
	srv.StartTLS()
	defer srv.Close()
	get := func(show ...tls.Certificate) (string, error) {
		tr := srv.Client().Transport.(*http.Transport).Clone()
		tr.TLSClientConfig.Certificates = show
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(srv.URL)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	r := request("GET", "https://partner.example.com/api/x")
	shown, err := k.client.Certificate(t.Context(), passFor(t, c.Name, r))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := get(*shown); err != nil || got != "agent" {
		t.Errorf("the server says %q, %v", got, err)
	}
	if got, err := get(); err == nil {
		t.Errorf("without a certificate the server says %q", got)
	}
	k.revoke("cell1")
	if got, err := get(*shown); err == nil {
		t.Errorf("after the run the server says %q", got)
	}
}

// signInExample has a person sign in by device code, and the program call the API and
// refresh, at a server that takes each code and token once.
func signInExample(t *testing.T, c policyfile.Credential) {
	t.Helper()
	idp := &identity{codes: map[string]string{}, opaque: true}
	k := kitFor(t, c, idp)
	k.grant("cell1", "run1", c.Name)
	post := func(to string, form url.Values) map[string]any {
		t.Helper()
		r := request("POST", "https://id.example.com/oauth2/"+to, "Content-Type", "application/x-www-form-urlencoded")
		r.Body = io.NopCloser(strings.NewReader(form.Encode()))
		pass := passFor(t, c.Name, r)
		if err := k.client.Inject(t.Context(), pass, r); err != nil {
			t.Fatal(err)
		}
		resp, err := k.client.Answer(t.Context(), pass, r)
		if err != nil || resp == nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v; the server says %v", to, resp, err, idp.rejected)
		}
		out := map[string]any{}
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	call := func(token any) string {
		t.Helper()
		r := request("GET", "https://api.example.com/orders/1", "Authorization", fmt.Sprintf("Bearer %v", token))
		if err := k.client.Inject(t.Context(), passFor(t, c.Name, r), r); err != nil {
			t.Fatal(err)
		}
		return r.Header.Get("Authorization")
	}
	client := url.Values{"client_id": {"agent-cli"}}
	begun := post("device_authorization", client)
	if got := idp.asked[0].Get("scope"); got != "orders.read offline_access" || begun["user_code"] != "WDJB-MJHT" {
		t.Errorf("it asks for %q and is told %v", got, begun)
	}
	got := post("token", (*person)(nil).poll(begun["device_code"]))
	if sent := call(got["access_token"]); sent != "Bearer "+idp.access() || got["access_token"] == idp.access() {
		t.Errorf("the API gets %q", sent)
	}
	next := post("token", refreshForm(got["refresh_token"]))
	if sent := call(next["access_token"]); sent != "Bearer "+idp.access() || len(idp.rejected) > 0 {
		t.Errorf("after a refresh the API gets %q; the server refused %v", sent, idp.rejected)
	}
}
