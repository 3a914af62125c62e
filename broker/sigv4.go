package broker

import (
	"net/url"
	"strings"

	"sallyport/broker/needle"
	"sallyport/broker/sign"
	"sallyport/control"
	"sallyport/rules/target"
)

// credential names the credential that a placeholder is of.
func (f *finder) credential(n *needle.Needle) string { return f.grants[f.owner[n.Value]].Credential }

// standsAlone reports whether a field's value is what a client writes into the
// place of a grant that holds its placeholder.
func standsAlone(g *control.Grant, v string) bool {
	if g.Place.Type == "aws-sigv4" {
		return signedAs(v, g.Placeholder)
	}
	return isAlone(v, g.Placeholder)
}

// signedAs reports whether a field's value is a signature of AWS Signature
// Version 4 by the holder of a placeholder, and names nobody else.
func signedAs(v, placeholder string) bool {
	rest, ok := strings.CutPrefix(strings.Trim(v, " \t"), "AWS4-HMAC-SHA256 ")
	return ok && strings.HasPrefix(strings.TrimLeft(rest, " "), "Credential="+placeholder+"/") && strings.Count(v, "Credential=") == 1
}

// presigned judges a part of a query for grant i, of type aws-sigv4, and reports
// whether its placeholder stands where it may. The signature itself counts for
// nothing: it is made anew.
func (l *look) presigned(i int, part string) bool {
	switch {
	case target.ParamNamed(part, "X-Amz-Credential"):
		key, v, _ := strings.Cut(part, "=")
		id, err := url.QueryUnescape(v)
		if err != nil || l.seen[i]&seenPlace != 0 || key != "X-Amz-Credential" || !strings.HasPrefix(id, l.f.grants[i].Placeholder+"/") {
			l.seen[i] |= seenForeign | seenPlace
			return false
		}
		l.seen[i] |= seenBound | seenPlace
		return true
	case target.ParamNamed(part, "X-Amz-Signature"):
	case isKeyParam(part):
		l.seen[i] |= seenForeign
	}
	return false
}

// sigV4Params are the parameters that a request with a place of that type may
// have changed: those of a presigned one.
func sigV4Params(query string) []string {
	for part := range strings.SplitSeq(query, "&") {
		if target.ParamNamed(part, "X-Amz-Credential") {
			return sign.SigV4Params()
		}
	}
	return nil
}
