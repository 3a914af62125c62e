package sign

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// volc is Volcengine's signature, version 4 ("Signature method" in its API
// documentation). The SDK in the sandbox signs with placeholders; the broker signs
// anew, for a region and a service that the credential lists.
type volc struct{ regions, services []string }

const volcAlgorithm = "HMAC-SHA256"

func newVolc(s policyfile.Scheme) (Scheme, error) {
	if len(s.Cloud.Regions) == 0 || len(s.Cloud.Services) == 0 {
		return nil, errors.New(`type "volcengine-v4" needs regions and services`)
	}
	return volc{s.Cloud.Regions, s.Cloud.Services}, nil
}

func (volc) Place() control.Place {
	return control.Place{Type: "volcengine-v4", Header: "Authorization", Fields: true, Payload: true}
}

func (volc) Check(v secret.Value) error { return volcNames.check(v) }

// Shapes implements [Shaper].
func (volc) Shapes(v secret.Value) ([]string, error) { return volcNames.shapes(v) }

// Sign covers host, content-type, content-md5 and every X- field of Volcengine's.
func (s volc) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	k, c, err := beginPair(v, volcNames, r, acs3Path(r.Path.String()))
	if err != nil {
		return Changes{}, err
	}
	region, service, err := s.scope(r)
	if err != nil {
		return Changes{}, err
	}
	now := r.Now.UTC()
	ch := Changes{Set: map[string][]string{"X-Date": {now.Format(amzTime)}, "X-Content-Sha256": {r.Payload}}, Expose: k.exposed()}
	k.setToken(&ch, "X-Security-Token")
	c.pick(r.Header, func(n string) bool {
		return n == "content-type" || n == "content-md5" || strings.HasPrefix(n, "x-") && n != "x-security-token"
	})
	c.set(ch.Set)
	scope := strings.Join([]string{now.Format("20060102"), region, service, "request"}, "/")
	toSign := strings.Join([]string{volcAlgorithm, ch.Set["X-Date"][0], scope, c.sum()}, "\n")
	key := chained(k.secret, strings.Split(scope, "/")...)
	ch.Set["Authorization"] = []string{fmt.Sprintf("%s Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		volcAlgorithm, k.id, scope, c.names(), hex.EncodeToString(hmacSHA256(key, toSign)))}
	return ch, nil
}

// scope takes region and service from the placeholder's signature, within what
// the credential lists. Without one there has to be one of each.
func (s volc) scope(r Request) (region, service string, err error) {
	scope := scoped(r.Header.Get("Authorization"), volcAlgorithm)
	switch {
	case r.Header.Get("Authorization") == "" && len(s.regions) == 1 && len(s.services) == 1:
		return s.regions[0], s.services[0], nil
	case len(scope) != 4:
		return "", "", unfit("the request does not say for which region and service it is meant, and the credential lists several")
	case !slices.Contains(s.regions, scope[1]):
		return "", "", unfit("region %.40q is not one of %s", scope[1], strings.Join(s.regions, ", "))
	case !slices.Contains(s.services, scope[2]):
		return "", "", unfit("service %.40q is not one of %s", scope[2], strings.Join(s.services, ", "))
	}
	return scope[1], scope[2], nil
}
