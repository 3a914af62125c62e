package sign

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
)

// acs3 is Alibaba Cloud's signature, version 3 ("V3 request structure and
// signature mechanism" in its documentation of OpenAPI). The SDK in the sandbox
// signs with placeholders; the broker signs anew.
type acs3 struct{ nonce func() string }

const acs3Algorithm = "ACS3-HMAC-SHA256"

func newACS3() Scheme { return acs3{rand.Text} }

func (acs3) Place() control.Place {
	return control.Place{Type: "alibaba-acs3", Header: "Authorization", Fields: true, Payload: true}
}

func (acs3) Check(v secret.Value) error { return alibabaNames.check(v) }

// Shapes implements [Shaper].
func (acs3) Shapes(v secret.Value) ([]string, error) { return alibabaNames.shapes(v) }

// Sign covers host, content-type and every x-acs- field. The nonce makes each
// signature good for one request; it is the broker's own.
func (a acs3) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	k, c, err := beginPair(v, alibabaNames, r, acs3Path(r.Path.String()))
	if err != nil {
		return Changes{}, err
	}
	ch := Changes{Set: map[string][]string{
		"X-Acs-Date": {r.Now.UTC().Format("2006-01-02T15:04:05Z")}, "X-Acs-Signature-Nonce": {a.nonce()},
		"X-Acs-Content-Sha256": {r.Payload},
	}, Remove: []string{"X-Acs-Signature-Method", "X-Acs-Signature-Version"}, Expose: k.exposed()}
	k.setToken(&ch, "X-Acs-Security-Token")
	c.pick(r.Header, func(n string) bool {
		return n == "content-type" || strings.HasPrefix(n, "x-acs-") && n != "x-acs-security-token" && !strings.HasPrefix(n, "x-acs-signature-")
	})
	c.set(ch.Set)
	ch.Set["Authorization"] = []string{fmt.Sprintf("%s Credential=%s,SignedHeaders=%s,Signature=%s",
		acs3Algorithm, k.id, c.names(), hex.EncodeToString(hmacSHA256([]byte(k.secret), acs3Algorithm+"\n"+c.sum())))}
	return ch, nil
}

// acs3Path encodes each segment once.
func acs3Path(sent string) string {
	segments := strings.Split(cmp.Or(sent, "/"), "/")
	for i, s := range segments {
		if plain, err := url.PathUnescape(s); err == nil {
			segments[i] = awsEncode(plain)
		}
	}
	return strings.Join(segments, "/")
}
