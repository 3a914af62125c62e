package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
)

func TestParseCollector(t *testing.T) {
	for text, want := range map[string]string{
		"otlp=https://c.example":             "otlp=https://c.example/v1/logs",
		"otlp=https://c.example:8443/x":      "otlp=https://c.example:8443/x",
		"otlp=http://127.0.0.1:4318/v1/logs": "otlp=http://127.0.0.1:4318/v1/logs",
		"otlp=http://localhost:4318":         "otlp=http://localhost:4318/v1/logs",
		"otlp=http://[::1]:4318":             "otlp=http://[::1]:4318/v1/logs",
		"syslog=tls://c.example":             "syslog=tls://c.example:6514",
		"syslog=tls://c.example:1":           "syslog=tls://c.example:1",
		"otlp=http://c.example":              "",
		"otlp=http://127.0.0.1.c.example":    "",
		"otlp=https://c.example/?token=x":    "",
		"otlp=https://u:p@c.example":         "",
		"otlp=ftp://c.example":               "",
		"syslog=tcp://c.example:514":         "",
		"syslog=tls://c.example/path":        "",
		"syslog=tls://":                      "",
		"":                                   "",
		"https://c.example":                  "",
		"otlp=https://c.example/%zz":         "",
	} {
		c, err := parseCollector(text)
		if got := ""; err == nil {
			if got = c.String(); got != want {
				t.Errorf("parseCollector(%q) = %q, want %q", text, got, want)
			}
		} else if want != "" {
			t.Errorf("parseCollector(%q) = %v", text, err)
		}
	}
}

// authority makes a certificate for 127.0.0.1 that vouches for itself.
func authority(t *testing.T) (cert tls.Certificate, certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// Both ends are verified, redirects are not followed, and headers are sent.
func TestSenderShowsItselfAndChecksTheCollector(t *testing.T) {
	server, serverPEM, _ := authority(t)
	_, clientPEM, clientKey := authority(t)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(clientPEM)
	status := http.StatusOK
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Token") != "t" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("headers are %v", r.Header)
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // the refusals are meant
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	put := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ship := func() error {
		t.Helper()
		id, err := loadIdentity(dir)
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseCollector("otlp=" + s.URL)
		if err != nil {
			t.Fatal(err)
		}
		send, done := id.sender(c)
		defer done()
		return send(t.Context(), []audit.Record{{Kind: audit.Admit}})
	}
	put(shipHeaders, []byte("X-Token: t\n\n"))
	if err := ship(); err == nil {
		t.Error("a collector that nobody vouches for is taken")
	}
	put(shipCA, serverPEM)
	if err := ship(); err == nil {
		t.Error("the collector took records from somebody who did not show himself")
	}
	put(shipCert, clientPEM)
	put(shipKey, clientKey)
	if err := ship(); err != nil {
		t.Error(err)
	}
	status = http.StatusFound
	if err := ship(); err == nil || !strings.Contains(err.Error(), "302") {
		t.Errorf("a redirect comes to %v", err)
	}
}

func TestLoadIdentityRefuses(t *testing.T) {
	_, cert, key := authority(t)
	_, other, _ := authority(t)
	for name, files := range map[string]map[string][]byte{
		"no certificate":           {shipCA: []byte("x")},
		"a certificate alone":      {shipCert: cert},
		"a key alone":              {shipKey: key},
		"another's certificate":    {shipCert: other, shipKey: key},
		"a header without a value": {shipHeaders: []byte("Authorization:")},
		"no header":                {shipHeaders: []byte("Bearer x")},
	} {
		dir := t.TempDir()
		for f, data := range files {
			if err := os.WriteFile(filepath.Join(dir, f), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := loadIdentity(dir); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
