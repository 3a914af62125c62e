package sign

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// tc3 is Tencent Cloud's signature, version 3 ("TC3-HMAC-SHA256" in the reference
// of its APIs). The SDK in the sandbox signs with placeholders; the broker signs
// anew, for a service that the credential lists.
type tc3 struct{ services []string }

const tc3Algorithm = "TC3-HMAC-SHA256"

func newTC3(s policyfile.Scheme) (Scheme, error) {
	if len(s.Cloud.Services) == 0 {
		return nil, errors.New(`type "tencent-tc3" needs services`)
	}
	return tc3{s.Cloud.Services}, nil
}

func (tc3) Place() control.Place {
	return control.Place{Type: "tencent-tc3", Header: "Authorization", Fields: true, Payload: true}
}

func (tc3) Check(v secret.Value) error { return tencentNames.check(v) }

// Shapes implements [Shaper].
func (tc3) Shapes(v secret.Value) ([]string, error) { return tencentNames.shapes(v) }

// Sign covers content-type and host, as Tencent's own SDKs do; what the X-TC- fields
// say is admitted by the gateway and kept by TLS.
func (t tc3) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	k, c, err := beginPair(v, tencentNames, r, cmp.Or(r.Path.String(), "/"))
	if err != nil {
		return Changes{}, err
	}
	service, err := t.service(r)
	if err != nil {
		return Changes{}, err
	}
	now := r.Now.UTC()
	ch := Changes{Set: map[string][]string{"X-Tc-Timestamp": {strconv.FormatInt(now.Unix(), 10)}}, Expose: k.exposed()}
	k.setToken(&ch, "X-Tc-Token")
	c.pick(r.Header, func(n string) bool { return n == "content-type" })
	c.fields["content-type"] = lower(c.fields["content-type"]) // so Tencent reads it
	date := now.Format("2006-01-02")
	scope := date + "/" + service + "/tc3_request"
	toSign := strings.Join([]string{tc3Algorithm, ch.Set["X-Tc-Timestamp"][0], scope, c.sum()}, "\n")
	key := chained("TC3"+k.secret, date, service, "tc3_request")
	ch.Set["Authorization"] = []string{fmt.Sprintf("%s Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		tc3Algorithm, k.id, scope, c.names(), hex.EncodeToString(hmacSHA256(key, toSign)))}
	return ch, nil
}

// service takes the service from the placeholder's signature, within what the
// credential lists. Without one there has to be one.
func (t tc3) service(r Request) (string, error) {
	scope := scoped(r.Header.Get("Authorization"), tc3Algorithm)
	switch {
	case len(scope) == 3 && slices.Contains(t.services, scope[1]):
		return scope[1], nil
	case len(scope) == 3:
		return "", unfit("service %.40q is not one of %s", scope[1], strings.Join(t.services, ", "))
	case r.Header.Get("Authorization") == "" && len(t.services) == 1:
		return t.services[0], nil
	}
	return "", unfit("the request does not say for which service it is meant, and the credential lists several")
}
