package scrub

import (
	"io"
	"strings"
)

// Decode returns a body without the content codings that a Content-Encoding
// header lists (RFC 9110 section 8.4). Closing it closes body. It reads nothing
// yet: what the codings hide is an error of Read.
func Decode(codings string, body io.ReadCloser) (io.ReadCloser, error) {
	list := strings.Split(codings, ",")
	for i := range list {
		name := strings.Trim(list[len(list)-1-i], " \t")
		if name == "" || lower(name) == "identity" {
			continue
		}
		next, err := decoder(name, body)
		if err != nil {
			return nil, err
		}
		body = next
	}
	return body, nil
}
