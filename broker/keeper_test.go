package broker_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"sallyport/broker"
	"sallyport/broker/secret"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/policyfile"
)

// fullDisk is a Keeper that keeps nothing while full is set.
type fullDisk struct {
	full  error
	wiped int
	saved int
}

func (*fullDisk) Load(context.Context) (secret.Value, error) { return secret.Value{}, nil }
func (d *fullDisk) Save(secret.Value) error                  { d.saved++; return d.full }
func (d *fullDisk) Wipe() error                              { d.wiped++; return nil }

// TestWhatCannotBeKeptIsTold: in the log of the broker, in the state of the
// credential and in a record of its own; the request goes out all the same.
func TestWhatCannotBeKeptIsTold(t *testing.T) {
	for name, full := range map[string]error{"full": errors.New("no space left on device"), "twin, with room": nil} {
		t.Run(name, func(t *testing.T) {
			way, _ := issuerFunc(func(context.Context, int) (int, string, error) {
				return http.StatusOK, `{"access_token":"at-1","token_type":"bearer","expires_in":3600,"refresh_token":"another-refresh-token"}`, nil
			}).counted()
			k, d := newKit(t), &fullDisk{full: full}
			k.stop()
			writeSecret(t, k.secret("key"), "first-refresh-token")
			k.creds[1].Scheme = policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: policyfile.OAuth2{TokenURL: "https://key.test/token", ClientID: "cli"}}
			k.tweak = func(c *broker.Config) {
				c.Transport, c.Keep = way, func(string) broker.Keeper { return d }
			}
			k.start()
			var recorded []string
			note := func(what string) func(context.Context, gate.Pass) error {
				return func(context.Context, gate.Pass) error { recorded = append(recorded, what); return nil }
			}
			k.client.Used, k.client.Minted, k.client.Unsaved = note("use"), note("mint"), note("unsaved")
			k.grant("cell1", "run1", "key")
			for range 2 {
				if header, err := k.inject("https://key.test/x"); err != nil || header != "Bearer at-1" {
					t.Errorf("%q, %v", header, err)
				}
			}
			want, status := "mint use use", "ok"
			if full != nil {
				want, status = "mint unsaved use use", "unsaved"
			}
			if got := strings.Join(recorded, " "); got != want {
				t.Errorf("recorded %q, want %q", got, want)
			}
			if told := strings.Contains(k.log.String(), "CANNOT BE KEPT ON DISK"); told != (full != nil) {
				t.Errorf("told loudly: %v", told)
			}
			var out broker.Statuses
			if err := k.op("/v1/credentials", struct{}{}, &out); err != nil || out.Credentials[2].Name != "key" || out.Credentials[2].Status != status {
				t.Errorf("status %+v, %v, want %s", out.Credentials, err, status)
			}
			if err := k.op("/v1/credentials/revoke", broker.Named{Credential: "key"}, nil); err != nil || d.wiped != 1 {
				t.Errorf("revoked: %v, wiped %d times", err, d.wiped)
			}
		})
	}
}

// TestNothingIsKeptAfterARevoke: a token that arrives while its credential is revoked or
// rotated is neither used for a revoked one nor written over what is kept now.
func TestNothingIsKeptAfterARevoke(t *testing.T) {
	for name, op := range map[string]string{"revoked": "/v1/credentials/revoke", "rotated": "/v1/credentials/refresh", "twin": ""} {
		t.Run(name, func(t *testing.T) {
			k, d := newKit(t), &fullDisk{}
			way, _ := issuerFunc(func(context.Context, int) (int, string, error) {
				if op != "" {
					if err := k.op(op, broker.Named{Credential: "key"}, nil); err != nil {
						t.Error(err)
					}
				}
				return http.StatusOK, `{"access_token":"at-1","token_type":"bearer","expires_in":3600,"refresh_token":"another-refresh-token"}`, nil
			}).counted()
			k.stop()
			writeSecret(t, k.secret("key"), "first-refresh-token")
			k.creds[1].Scheme = policyfile.Scheme{Type: policyfile.OAuth2Refresh, OAuth2: policyfile.OAuth2{TokenURL: "https://key.test/token", ClientID: "cli"}}
			k.tweak = func(c *broker.Config) {
				c.Transport, c.Keep = way, func(string) broker.Keeper { return d }
			}
			k.start()
			k.grant("cell1", "run1", "key")
			header, err := k.inject("https://key.test/x")
			switch name {
			case "revoked":
				wantDenied(t, err, rules.CredentialRevoked)
			default:
				if err != nil || header != "Bearer at-1" {
					t.Errorf("%q, %v", header, err)
				}
			}
			if want := name == "twin"; (d.saved == 1) != want || d.saved > 1 {
				t.Errorf("saved %d times", d.saved)
			}
		})
	}
}
