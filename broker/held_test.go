package broker_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// holdLong has answers held for longer than any test takes: what ends them must
// be what the test does.
func holdLong(c *broker.Config) { c.Hold = time.Hour }

const rotatedToken = "sk_test_rotated_rotated_rotated_0000"

// held has the answer to a GET of api.test/v1/x held, and proves that it is: the
// secret in the store is another by now, and the old one still goes out.
func (k *kit) held() {
	k.t.Helper()
	for range 2 { // the first opens the line
		if _, err := k.inject("https://api.test/v1/x"); err != nil {
			k.t.Fatal(err)
		}
	}
	writeSecret(k.t, k.secret("api"), rotatedToken)
	if got, err := k.inject("https://api.test/v1/x"); err != nil || got != "Bearer "+realToken {
		k.t.Fatalf("twin: nothing is held: %q, %v", got, err)
	}
}

// ready returns a request that is admitted while the answer to it is held.
func (k *kit) ready() (*http.Request, gate.Pass) {
	k.t.Helper()
	r := request("GET", "https://api.test/v1/x")
	p, err := admit(k.t, "cell1", "run1", r, nil)
	if err != nil || !k.client.Ready(p) {
		k.t.Fatalf("twin: not ready for a question whose answer is held; %v", err)
	}
	return r, p
}

// TestHeldAnswersEnd is CR-25 for what the gateway holds: whatever changes acts on
// the next request.
func TestHeldAnswersEnd(t *testing.T) {
	narrow := func(c *policyfile.Credential) {
		c.Endpoints = []policyfile.Endpoint{{Host: host("api.test"), Ports: []uint16{443}, Methods: []string{"POST"}}}
	}
	tests := []struct {
		name string
		do   func(k *kit) error
		want rules.Reason // "": the new secret goes out
	}{
		{"the run ends", func(k *kit) error { k.revoke("cell1"); return nil }, rules.CredentialRevoked},
		{"the credential is revoked", func(k *kit) error {
			return k.op("/v1/credentials/revoke", broker.Named{Credential: "api"}, nil)
		}, rules.CredentialRevoked},
		{"its lock is narrowed", func(k *kit) error {
			k.creds = append([]policyfile.Credential{}, k.creds...)
			narrow(&k.creds[0])
			return k.op("/v1/reload", struct{}{}, nil)
		}, rules.CredentialMismatch},
		{"the broker ends", func(k *kit) error { k.stop(); return nil }, rules.BrokerUnavailable},
		{"the cell is detached", func(k *kit) error { k.client.Detach("cell1"); return nil }, rules.CredentialRevoked},
		{"another run has the cell", func(k *kit) error {
			k.revoke("cell1")
			k.grant("cell1", "run2", "key")
			return nil
		}, rules.CredentialRevoked},
		{"the secret is rotated", func(k *kit) error {
			return k.op("/v1/credentials/refresh", broker.Named{Credential: "api"}, nil)
		}, ""},
		{"the run of another cell ends", func(k *kit) error { k.revoke("cell2"); return nil }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := newKit(t)
			k.restart(func(c *broker.Config) {
				holdLong(c)
				c.Reread = func() (broker.Config, error) { return broker.Config{Credentials: k.creds}, nil }
			})
			k.grant("cell1", "run1", "api")
			k.grant("cell2", "run2", "api")
			k.held()
			r, p := k.ready()
			if err := tt.do(k); err != nil {
				t.Fatal(err)
			}
			if k.client.Ready(p) {
				t.Error("Ready, although what was held has ended")
			}
			// Also for a request whose use was recorded already, with its admission.
			if err := k.client.Inject(t.Context(), p, r); tt.want != "" {
				wantDenied(t, err, tt.want)
			} else if got := r.Header.Get("Authorization"); err != nil || got != "Bearer "+rotatedToken {
				t.Errorf("Inject of what was admitted before = %q, %v; want the new secret", got, err)
			}
			switch got, err := k.inject("https://api.test/v1/x"); {
			case tt.want != "":
				wantDenied(t, err, tt.want)
			case err != nil || got != "Bearer "+rotatedToken:
				t.Errorf("Inject = %q, %v; want the new secret", got, err)
			}
		})
	}
}

// TestHeldAnswersAnswerOneQuestion: the broker judges each place, method, path and
// run that it has not judged yet.
func TestHeldAnswersAnswerOneQuestion(t *testing.T) {
	k := newKit(t)
	k.restart(holdLong)
	k.grant("cell1", "run1", "api")
	k.grant("cell2", "run2", "key")
	k.held()
	tests := []struct {
		name, cell, run, method, url string
		want                         rules.Reason
	}{
		{"method", "cell1", "run1", "DELETE", "https://api.test/v1/x", rules.CredentialMismatch},
		{"path", "cell1", "run1", "GET", "https://api.test/v2/x", rules.CredentialMismatch},
		{"host", "cell1", "run1", "GET", "https://evil.test/v1/x", rules.CredentialMismatch},
		{"port", "cell1", "run1", "GET", "https://api.test:8443/v1/x", rules.CredentialMismatch},
		{"TLS", "cell1", "run1", "GET", "http://api.test/v1/x", rules.CredentialNeedsTLS},
		{"cell", "cell2", "run2", "GET", "https://api.test/v1/x", rules.CredentialMismatch},
		{"run", "cell1", "run2", "GET", "https://api.test/v1/x", rules.CredentialRevoked},
	}
	for _, tt := range tests {
		r := request(tt.method, tt.url)
		p, err := admit(t, tt.cell, tt.run, r, nil)
		if k.client.Ready(p) {
			t.Errorf("%s: ready for a question that was not answered", tt.name)
		}
		if err == nil {
			err = k.client.Inject(t.Context(), p, r)
		}
		wantDenied(t, err, tt.want)
		if got := r.Header.Get("Authorization"); got != "" {
			t.Errorf("%s: %q is in the request", tt.name, got)
		}
	}
	if got, err := k.inject("https://api.test/v1/x"); err != nil || got != "Bearer "+realToken {
		t.Errorf("twin: %q, %v", got, err)
	}
}

// TestHeldAnswersAreTold: every use has its record, and its count at the broker.
func TestHeldAnswersAreTold(t *testing.T) {
	k := newKit(t)
	k.restart(func(c *broker.Config) { c.Hold = 10 * time.Millisecond })
	k.grant("cell1", "run1", "api")
	var recorded int64
	var fail error
	k.client.Used = func(context.Context, gate.Pass) error {
		if fail == nil {
			recorded++
		}
		return fail
	}
	const n = 200
	for range n {
		if _, err := k.inject("https://api.test/v1/x"); err != nil {
			t.Fatal(err)
		}
	}
	fail = &gate.DeniedError{Reason: rules.AuditUnavailable, Err: errors.New("no space")}
	got, err := k.inject("https://api.test/v1/x")
	wantDenied(t, err, rules.AuditUnavailable)
	if got != "" || recorded != n {
		t.Errorf("%d of %d uses recorded; %q went out unrecorded", recorded, n, got)
	}
	for {
		var list broker.Statuses
		if err := k.op("/v1/credentials", struct{}{}, &list); err != nil {
			t.Fatal(err) // in the end, of the test's deadline
		}
		if uses := list.Credentials[0].Uses; uses == n+1 {
			break
		} else if uses > n+1 {
			t.Fatalf("%d uses were counted, of %d", uses, n+1)
		}
	}
}

// TestHeldSecretsAreWiped when they are as old as they may get, whoever asks.
func TestHeldSecretsAreWiped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, left := broker.HoldAnswer("Bearer "+realToken, 50*time.Millisecond)
		time.Sleep(49 * time.Millisecond)
		synctest.Wait()
		if string(held.Reveal()) != "Bearer "+realToken || left() != 1 {
			t.Error("twin: wiped too soon")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if held.Len() != 0 || left() != 0 {
			t.Errorf("%d octets, %d answers are left", held.Len(), left())
		}
	})
}

// TestKilledBrokerUnderLoad: after kill -9, no request has the credential that was
// not in it before, however many are under way, and no other request is refused.
func TestKilledBrokerUnderLoad(t *testing.T) {
	dir, socket, ln := world(t)
	held := role{Dir: dir, Root: true, Hold: time.Hour}
	p := serveAs(t, held, ln)
	admin, client := control.NewClient(socket), broker.NewClient(socket)
	defer admin.Close()
	defer client.Close()
	var out broker.Grants
	if err := admin.Call(t.Context(), "/v1/grants", broker.GrantRequest{Cell: "cell1", Run: "run1", Credentials: []string{"api"}}, &out); err != nil {
		t.Fatal(err)
	}
	f := control.CellFile{Cell: "cell1", Run: "run1", Policy: "sha256:00", Sandbox: sandboxAddr, Gateway: sandboxAddr, Grants: out.Grants, Created: epoch}
	if err := f.Write(filepath.Join(dir, "cells"), brokerUID); err != nil {
		t.Fatal(err)
	}
	client.Attach(f)
	r := request("GET", "https://api.test/v1/x")
	signed, plain := pass(t, "cell1", "run1", r), pass(t, "cell1", "run1", request("GET", "https://ok.test/"))
	inject := func() error { return client.Inject(t.Context(), signed, request("GET", "https://api.test/v1/x")) }

	var killed atomic.Bool
	var load sync.WaitGroup
	warm := make(chan struct{}, 8)
	for range cap(warm) {
		load.Go(func() {
			for n := 0; ; n++ {
				dead := killed.Load()
				err := inject()
				switch {
				case dead:
					wantDenied(t, err, rules.BrokerUnavailable)
					if err := client.Inject(t.Context(), plain, request("GET", "https://ok.test/")); err != nil {
						t.Errorf("twin, without a credential: %v", err)
					}
					return
				case n == 100:
					warm <- struct{}{}
				case err != nil && n < 100:
					t.Errorf("twin: %v", err)
					warm <- struct{}{}
					return
				}
			}
		})
	}
	for range cap(warm) {
		<-warm
	}
	// The listener outlives the broker; who cannot connect is refused at once.
	if err := os.Rename(socket, socket+".away"); err != nil {
		t.Fatal(err)
	}
	p.kill(t)
	killed.Store(true)
	load.Wait()
	if err := os.Rename(socket+".away", socket); err != nil {
		t.Fatal(err)
	}
	p = serveAs(t, held, ln)
	defer p.kill(t)
	if err := inject(); err != nil {
		t.Errorf("twin, another broker: %v", err)
	}
}
