package proxy

import (
	"errors"
	"net/http"
	"strings"
)

var errDoH = errors.New("DNS over HTTPS: names are asked of the resolver of the sandbox")

// asksDNS recognises DNS over HTTPS by its media types (RFC 8484 section 6, and
// the JSON of some resolvers). It would be a second resolver beside ours, and
// names would carry data out past every rule about hosts.
func asksDNS(h http.Header) bool {
	for _, field := range []string{"Content-Type", "Accept"} {
		for _, v := range h[field] {
			for item := range strings.SplitSeq(v, ",") {
				kind, _, _ := strings.Cut(item, ";")
				kind = strings.Trim(kind, " \t")
				if strings.EqualFold(kind, "application/dns-message") || strings.EqualFold(kind, "application/dns-json") {
					return true
				}
			}
		}
	}
	return false
}
