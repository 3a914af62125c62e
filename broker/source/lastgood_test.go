package source_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/broker/source"
	"sallyport/rules/policyfile"
)

// TestKubernetesTokenIsProjectedAnew: the service account's token ends, and the file
// holds another by then; the secret is rotated too. A server that fails refuses, and
// the last good value serves on only if the document says so.
func TestKubernetesTokenIsProjectedAnew(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("keep ", keep), func(t *testing.T) {
			var good, data atomic.Value
			var down atomic.Bool
			good.Store("eyJ.first.token")
			data.Store("c2tfdGVzdF9maXJzdA==")
			srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case down.Load():
					w.WriteHeader(http.StatusServiceUnavailable)
				case r.Header.Get("Authorization") != "Bearer "+good.Load().(string):
					w.WriteHeader(http.StatusUnauthorized)
				default:
					fmt.Fprintf(w, `{"kind":"Secret","data":{"key":%q}}`, data.Load())
				}
			}))
			defer srv.Close()
			dir := t.TempDir()
			project(t, dir, "eyJ.first.token", 0o644)
			cfg, now := webConfig(srv)
			k, err := source.Open(policyfile.Source{KeepOnError: keep, Kubernetes: &policyfile.Kubernetes{
				API: srv.URL, Namespace: "agents", Secret: "stripe", Key: "key", TokenFile: dir + "/key",
			}}, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := reveal(t, k); got != "sk_test_first" {
				t.Fatalf("%q", got)
			}
			good.Store("eyJ.second.token")
			data.Store("c2tfdGVzdF9zZWNvbmQ=")
			project(t, dir, "eyJ.second.token", 0o644)
			now.Add(int64(61 * time.Second))
			if got := reveal(t, k); got != "sk_test_second" {
				t.Errorf("after both were rotated: %q", got)
			}
			down.Store(true)
			now.Add(int64(61 * time.Second))
			v, err := k.Get(t.Context())
			_, why := k.Stale()
			switch {
			case keep && (err != nil || string(v.Reveal()) != "sk_test_second" || why == nil || !strings.Contains(why.Error(), "it answered 503")):
				t.Errorf("told to keep: %v, stale: %v", err, why)
			case !keep && (err == nil || !strings.Contains(err.Error(), "it answered 503")):
				t.Errorf("not told to keep: %v", err)
			}
			down.Store(false)
			if got := reveal(t, k); got != "sk_test_second" {
				t.Errorf("twin, after it came back: %q", got)
			}
		})
	}
}
