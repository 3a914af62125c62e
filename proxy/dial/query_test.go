package dial_test

import (
	"errors"
	"net/http"
	"net/url"
	"testing"

	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// TestForwardLetsOnlyTheCredentialsParameterDiffer: a credential in the query
// comes after the decision, and nothing else may.
func TestForwardLetsOnlyTheCredentialsParameterDiffer(t *testing.T) {
	granting := func(name string) func(*rules.Rule) { return func(r *rules.Rule) { r.Credential = name } }
	w := newWorld(t, []rules.Rule{allow("maps", granting("maps"), "ok.test"), allow("none", nil, "none.test")}, func(c *dial.Config) {
		c.Params = func(p gate.Pass) []string {
			if p.Decision().Credential == "maps" || p.Request().Endpoint.Host.String() == "none.test" {
				return []string{"key"}
			}
			return nil
		}
	})
	s, none := w.site("ok.test", okAddr, nil), w.site("none.test", evilAddr, nil)
	w.resolver.Set("ok.test", "A 11.7.7.7")
	w.resolver.Set("none.test", "A 11.7.7.66")
	tests := []struct {
		name, admitted, query string
		want                  string // "" is refused
	}{
		{"a parameter more", "a=1", "a=1&b=2&key=S", ""},
		{"a parameter less", "a=1&b=2", "a=1&key=S", ""},
		{"another value", "a=1", "a=2&key=S", ""},
		{"another order", "a=1&b=2", "b=2&a=1&key=S", ""},
		{"another spelling", "a=%31", "a=1&key=S", ""},
		{"an empty part less", "a=1&&b=2", "a=1&b=2&key=S", ""},
		{"twice", "a=1", "a=1&key=S&key=T", ""},
		{"in another case", "a=1", "a=1&KEY=S", ""},
		{"encoded", "a=1", "a=1&k%65y=S", ""},
		{"behind a semicolon", "a=1", "a=1&x=1;key=S", ""},
		{"with a semicolon in the value", "a=1", "a=1&key=S;b=2", ""},
		{"with a blank", "a=1", "a=1&key=S HTTP/1.1", ""},
		{"with a line break", "a=1", "a=1&key=S\r\nX: y", ""},
		{"with a fragment", "a=1", "a=1&key=S#x", ""},
		{"beyond ASCII", "a=1", "a=1&key=é", ""},
		{"added", "a=1&&b=%zz", "a=1&&b=%zz&key=S%2F", "a=1&&b=%zz&key=S%2F"},
		{"replaced", "key=PLACEHOLDER&a=1", "a=1&key=S", "a=1&key=S"},
		{"alone", "", "key=S", "key=S"},
		{"lookalikes taken away", "KEY=1&a=1&k%65y=2", "a=1&key=S", "a=1&key=S"},
		{"unchanged", "a=1;b", "a=1;b", "a=1;b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s.Reset()
			_, err := w.do("GET", "https://ok.test/x?"+tt.admitted, func(r *http.Request) { r.URL = &url.URL{RawQuery: tt.query} })
			seen := s.Seen()
			switch {
			case tt.want == "" && (!errors.Is(err, dial.ErrNoPass) || len(seen) > 0):
				t.Errorf("Forward = %v; the site saw %v", err, seen)
			case tt.want != "" && (err != nil || seen[0].URI != "/x?"+tt.want):
				t.Errorf("Forward = %v; the site saw %v", err, seen)
			}
		})
	}
	// Without a credential the admitted query is sent.
	_, err := w.do("GET", "https://none.test/x?a=1", func(r *http.Request) { r.URL = &url.URL{RawQuery: "a=1&key=S"} })
	if seen := none.Seen(); err != nil || seen[0].URI != "/x?a=1" {
		t.Errorf("without a credential: %v; the site saw %v", err, seen)
	}
}
