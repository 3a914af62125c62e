package broker

import (
	"encoding/base64"
	"net/url"
	"strings"

	"sallyport/broker/needle"
	"sallyport/broker/sign"
	"sallyport/control"
	"sallyport/rules/target"
)

// credential names the credential that a placeholder is of.
func (f *finder) credential(n *needle.Needle) string { return f.grants[f.owner[n.Value]].Credential }

// signatures are the words with which a signature of a vendor begins.
var signatures = map[string]string{
	"aws-sigv4": "AWS4-HMAC-SHA256", "tencent-tc3": "TC3-HMAC-SHA256", "alibaba-acs3": "ACS3-HMAC-SHA256", "volcengine-v4": "HMAC-SHA256",
}

// standsAlone reports whether a field's value is what a client writes into the
// place of a grant that holds its placeholder.
func standsAlone(g *control.Grant, v string) bool {
	if word := signatures[g.Place.Type]; word != "" {
		return signedAs(v, word, g.Placeholder)
	}
	switch g.Place.Type {
	case "gcp-service-account":
		return isAlone(v, g.Placeholder) || isMintedAs(g, v)
	case "oauth2-user":
		return signedInAs(g, v)
	case "azure-storage":
		return sharedKey(v, g.Place.Name)
	}
	return isAlone(v, g.Placeholder)
}

// signedInAs reports whether a field's value is an access token as the sandbox was
// given it, or what shows who the client is.
func signedInAs(g *control.Grant, v string) bool {
	v = strings.Trim(v, " \t")
	scheme, token, _ := strings.Cut(v, " ")
	if strings.EqualFold(scheme, "bearer") {
		return strings.HasSuffix(token, g.Placeholder) && !strings.ContainsAny(token, " ,")
	}
	id, password, ok := basicPair(v)
	return ok && id == g.Place.Name && len(g.More) == cores && (password == "" || password == g.More[coreClient].Placeholder)
}

// signedAs reports whether a field's value is a vendor's signature by the holder
// of a placeholder, and names nobody else.
func signedAs(v, word, placeholder string) bool {
	rest, ok := strings.CutPrefix(strings.Trim(v, " \t"), word+" ")
	rest, named := strings.CutPrefix(strings.TrimLeft(rest, " "), "Credential="+placeholder)
	return ok && named && (strings.HasPrefix(rest, "/") || strings.HasPrefix(rest, ",")) && strings.Count(v, "Credential=") == 1
}

// sharedKey reports whether a field's value is a signature for an account of
// Azure Storage: the signature tells nothing about the key, and is made anew.
func sharedKey(v, account string) bool {
	sig, ok := strings.CutPrefix(strings.Trim(v, " \t"), "SharedKey "+account+":")
	sum, err := base64.StdEncoding.DecodeString(sig)
	return ok && err == nil && len(sum) == 32
}

// credentialParam is where a presigned request of type aws-sigv4 says who signed.
const credentialParam = "X-Amz-Credential" //nolint:gosec // a name, no secret

// isPresigned reports whether a parameter of a query says that the holder of a
// grant's placeholder signed. The signature itself counts for nothing: it is made
// anew.
func isPresigned(g *control.Grant, key, v string) bool {
	id, err := url.QueryUnescape(v)
	return err == nil && key == credentialParam && strings.HasPrefix(id, g.Placeholder+"/")
}

// sigV4Params are the parameters that a request with a place of that type may
// have changed: those of a presigned one.
func sigV4Params(query string) []string {
	for part := range strings.SplitSeq(query, "&") {
		if target.ParamNamed(part, credentialParam) {
			return sign.SigV4Params()
		}
	}
	return nil
}
