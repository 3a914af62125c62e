package clients_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// vendorOrigin is a server of test/sdk, which verifies with the vendor's own code.
type vendorOrigin struct {
	http.Handler

	mu      sync.Mutex
	answers []string // method and status
}

// startOrigin starts one of them, with the true keys of an account.
func startOrigin(t *testing.T, sdk, name, id, key, token string) *vendorOrigin {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), sdk, "serve", name) // the end of the test ends it
	cmd.Env = []string{"SDK_ID=" + id, "SDK_KEY=" + key, "SDK_TOKEN=" + token}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	o := &vendorOrigin{}
	to := &url.URL{Scheme: "http", Host: strings.TrimSpace(addr)}
	o.Handler = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(r *http.Response) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.answers = append(o.answers, fmt.Sprint(r.Request.Method, " ", r.StatusCode))
			return nil
		},
	}
	return o
}

// taken returns what was answered since it was last asked.
func (o *vendorOrigin) taken() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.answers
	o.answers = nil
	return out
}

// loot is a server that nobody has a credential for; it counts what it gets.
func loot() (origin, *atomic.Int64) {
	var n atomic.Int64
	return origin{host: "other.test", handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.Add(1) })}, &n
}

// vendorSDK is a vendor whose SDK signs with a pair of keys.
type vendorSDK struct {
	name, host, id, key, token string
	doc, secret                string // secret has a %q for each of the three
	ids                        [2]string
	calls                      []string // method and status of what it sends, if all is well
}

var vendorSDKs = []vendorSDK{
	{
		name: "tencent", host: "cvm.tencentcloudapi.com", id: "AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE", key: "Gu5t9xGARNpq86cd98joQYCN3EXAMPLE", token: "tencents-token-of-temporary-keys-000000000",
		doc: "type: tencent-tc3\ntencent-tc3: {services: [cvm]}\nplaceholder: {env: TENCENTCLOUD_SECRET_ID, secret_env: TENCENTCLOUD_SECRET_KEY}",
		ids: [2]string{"TENCENTCLOUD_SECRET_ID", "TENCENTCLOUD_SECRET_KEY"}, secret: `{"SecretId":%q,"SecretKey":%q,"Token":%q}`, calls: []string{"POST 200"},
	},
	{
		name: "alibaba", host: "ecs.cn-shanghai.aliyuncs.com", id: "LTAI5tEXAMPLEEXAMPLE0000", key: "aliYourAccessKeySecretEXAMPLE0", token: "alibabas-token-of-temporary-keys-000000000",
		doc: "type: alibaba-acs3\nplaceholder: {env: ALIBABA_CLOUD_ACCESS_KEY_ID, secret_env: ALIBABA_CLOUD_ACCESS_KEY_SECRET}",
		ids: [2]string{"ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"}, secret: `{"AccessKeyId":%q,"AccessKeySecret":%q,"SecurityToken":%q}`, calls: []string{"POST 200"},
	},
	{
		name: "volcengine", host: "iam.volcengineapi.com", id: "AKLTEXAMPLEEXAMPLE00000000000000", key: "VolcSecretEXAMPLEVolcSecretEXAMPLE00000000==", token: "volcengines-token-of-temporary-keys-000000",
		doc: "type: volcengine-v4\nvolcengine-v4: {regions: [cn-north-1], services: [iam]}\nplaceholder: {env: VOLC_ACCESSKEY, secret_env: VOLC_SECRETKEY}",
		ids: [2]string{"VOLC_ACCESSKEY", "VOLC_SECRETKEY"}, secret: `{"AccessKeyId":%q,"SecretAccessKey":%q,"SessionToken":%q}`, calls: []string{"GET 200", "POST 200"},
	},
}

// TestVendorSDKs: SDKs of clouds sign with placeholders, and servers that verify with
// the vendors' code take what arrives; what other keys sign they refuse.
func TestVendorSDKs(t *testing.T) {
	sdk := buildSDK(t)
	for _, v := range vendorSDKs {
		for mode, token := range map[string]string{"permanent keys": "", "temporary keys": v.token} {
			t.Run(v.name+", "+mode, func(t *testing.T) { v.test(t, sdk, token) })
		}
		t.Run(v.name+", wrong key", func(t *testing.T) {
			o := startOrigin(t, sdk, v.name, v.id, v.key, "")
			g := newGateway(t, []origin{{host: v.host, handler: o}}, []credential{{name: v.name, host: v.host, doc: v.doc, secret: fmt.Sprintf(v.secret, v.id, "x"+v.key[1:], "")}})
			out, err := g.command("", sdk, v.name, v.host, "text")
			if got := o.taken(); err == nil || len(got) != 1 || !strings.HasSuffix(got[0], " 403") || !slices.Equal(g.reasons(), []string{"allowed"}) {
				t.Errorf("the server answered %q, %v, refusals %q, %s", got, err, g.reasons(), out)
			}
		})
	}
}

func (v vendorSDK) test(t *testing.T, sdk, token string) {
	t.Helper()
	o := startOrigin(t, sdk, v.name, v.id, v.key, token)
	other, looted := loot()
	g := newGateway(t, []origin{{host: v.host, handler: o}, other}, []credential{{name: v.name, host: v.host, doc: v.doc, secret: fmt.Sprintf(v.secret, v.id, v.key, token)}})
	out := g.must("", sdk, v.name, v.host, "a b/ü=~*")
	if got := o.taken(); !slices.Equal(got, v.calls) || !strings.Contains(out, "a b/ü=~*") {
		t.Errorf("the server answered %q, want %q; the program says %s", got, v.calls, out)
	}
	// The id's placeholder at another host, and somebody's own keys at this one.
	if out, err := g.command("", sdk, v.name, other.host, "text"); err == nil || !slices.Contains(g.reasons(), "placeholder_leak") || looted.Load() > 0 {
		t.Errorf("another host: %v, refusals %q, %s", err, g.reasons(), out)
	}
	mine := g.env
	g.env = append(slices.Clone(mine), v.ids[0]+"=AKIDATTACKER000000000000", v.ids[1]+"=attackerssecretkey0000000000000")
	if out, err := g.command("", sdk, v.name, v.host, "text"); err == nil || !slices.Contains(g.reasons(), "foreign_credential") || len(o.taken()) > 0 {
		t.Errorf("SG-07 another's keys: %v, refusals %q, %s", err, g.reasons(), out)
	}
	g.env = mine
	g.holdsNone(v.key)
	if token != "" {
		g.holdsNone(token)
	}
}
