package broker

import (
	"slices"
	"strings"

	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

// keyFields are header fields in which APIs take keys. On a host with a
// credential, a caller's own key in any of them is refused, whichever of them
// the credential itself uses: an allowed API must not become a drop box for
// somebody else's account (CR-14). Cookies are not among them, unless a document
// says so (keys_in): APIs set them on clients that did not ask.
var keyFields = []string{
	"Authorization", "X-Authorization", "X-Forwarded-Authorization", "Authentication",
	"X-Api-Key", "Api-Key", "Apikey", "X-Apikey", "X-Api-Token", "Api-Token", "X-Api-Secret", "X-Access-Token", "Access-Token",
	"X-Auth-Token", "X-Auth-Key", "X-Auth", "Auth-Token", "Private-Token", "Job-Token", "Deploy-Token", "X-Token",
	"X-Goog-Api-Key", "X-Goog-Iam-Authorization-Token", "X-Serverless-Authorization",
	"X-Amz-Security-Token", "X-Amz-Access-Token",
	"Ocp-Apim-Subscription-Key", "X-Functions-Key", "X-Ms-Authorization-Auxiliary",
	"X-Shopify-Access-Token", "X-Figma-Token", "X-Vault-Token", "X-Rapidapi-Key", "Xi-Api-Key", "X-Subscription-Token",
	"X-Algolia-Api-Key", "X-Session-Token", "X-User-Token", "X-Original-Authorization",
	"Circle-Token", "X-Postmark-Server-Token", "X-Octopus-Apikey", "Dd-Api-Key", "Dd-Application-Key", "X-Honeycomb-Team",
}

// keyParams are query parameters of that kind, and those that say who signed a URL.
// Short names that APIs also use for other things (key, token, sig, signature) are
// left out.
var keyParams = []string{
	"api_key", "api-key", "apikey", "api_token", "api-token", "apitoken", "access_token", "access-token", "accesstoken",
	"auth_token", "auth-token", "authtoken", "oauth_token", "private_token", "client_secret", "subscription-key", "jwt",
	"x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature", "x-goog-credential",
	"awsaccesskeyid", "googleaccessid", "ossaccesskeyid", "key-pair-id",
}

// ownPlaces are further places in which the API of a credential takes keys, as its
// document says: names that mean other things elsewhere.
type ownPlaces struct{ headers, cookies, params []string }

func ownPlacesOf(text string) (o ownPlaces) {
	for _, f := range policyfile.Fields(text) {
		switch f.Kind {
		case "header":
			o.headers = append(o.headers, f.Name)
		case "cookie":
			o.cookies = append(o.cookies, f.Name)
		case "param":
			o.params = append(o.params, f.Name)
		}
	}
	return o
}

// inField reports whether a header field that is not empty holds a caller's own key.
func (o *ownPlaces) inField(key string, values []string) bool {
	for _, name := range o.headers {
		if sameField(key, name) {
			return true
		}
	}
	if len(o.cookies) == 0 || !sameField(key, "Cookie") {
		return false
	}
	for _, line := range values {
		for pair := range strings.SplitSeq(line, ";") {
			name, value, _ := strings.Cut(strings.Trim(pair, " \t"), "=")
			if value != "" && slices.Contains(o.cookies, name) {
				return true
			}
		}
	}
	return false
}

// inParam reports whether a part of the query holds a caller's own key.
func (o *ownPlaces) inParam(part string) bool {
	_, value, _ := strings.Cut(part, "=")
	return value != "" && slices.ContainsFunc(o.params, func(name string) bool { return target.ParamLike(part, name) })
}

// canonicalKeyFields is keyFields for the usual case of a canonical name.
var canonicalKeyFields = func() map[string]bool {
	m := make(map[string]bool, len(keyFields))
	for _, f := range keyFields {
		m[f] = true
	}
	return m
}()

func isKeyField(key string) bool {
	if canonicalKeyFields[key] {
		return true
	}
	if key == "" || strings.IndexByte(key, '_') < 0 && 'A' <= key[0] && key[0] <= 'Z' {
		return false // canonical, as net/http leaves every valid name
	}
	for _, f := range keyFields {
		if sameField(f, key) {
			return true
		}
	}
	return false
}

func isKeyParam(part string) bool {
	if strings.IndexByte(part, '=') < 0 {
		return false
	}
	for _, p := range keyParams {
		if target.ParamLike(part, p) {
			return true
		}
	}
	return false
}
