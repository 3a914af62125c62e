package broker_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
)

const (
	phAPI  = "sk_test_PlAcEhOlDeR0000000000001"
	phKey  = "ffffffffffffffffffffffffffff0002"
	phMaps = "AIzaPlAcEhOlDeR00000000000000003"
)

func finder() *broker.Client {
	c := broker.NewClient("/nowhere")
	c.Attach(control.CellFile{Cell: "cell1", Run: "run1", Grants: []control.Grant{
		{Credential: "api", Placeholder: phAPI, Place: control.Place{Type: "bearer", Header: "Authorization"}},
		{Credential: "key", Placeholder: phKey, Place: control.Place{Type: "header", Header: "X-Api-Key"}},
		{Credential: "maps", Placeholder: phMaps, Place: control.Place{Type: "query", Header: "key"}},
	}})
	c.Attach(control.CellFile{Cell: "bare", Run: "run2"})
	return c
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

var (
	apiBound    = rules.Carry{Credential: "api", State: rules.Bound}
	apiForeign  = rules.Carry{Credential: "api", State: rules.Foreign}
	apiLeaked   = rules.Carry{Credential: "api", State: rules.Leaked}
	keyBound    = rules.Carry{Credential: "key", State: rules.Bound}
	keyForeign  = rules.Carry{Credential: "key", State: rules.Foreign}
	keyLeaked   = rules.Carry{Credential: "key", State: rules.Leaked}
	mapsBound   = rules.Carry{Credential: "maps", State: rules.Bound}
	mapsForeign = rules.Carry{Credential: "maps", State: rules.Foreign}
	mapsLeaked  = rules.Carry{Credential: "maps", State: rules.Leaked}
)

func TestFind(t *testing.T) {
	all := func(c ...rules.Carry) []rules.Carry { return c }
	tests := []struct {
		name, url string
		header    []string
		want      []rules.Carry
	}{
		// Refusals.
		{"CR-04 path", "https://h.test/" + phAPI, nil, all(apiLeaked)},
		{"CR-04 query", "https://h.test/?q=" + phAPI, nil, all(apiLeaked)},
		{"CR-04 name in query", "https://h.test/?" + phAPI + "=1", nil, all(apiLeaked)},
		{"CR-04 userinfo", "https://u:" + phAPI + "@h.test/", nil, all(apiLeaked, apiForeign, keyForeign, mapsForeign)},
		{"userinfo, user", "https://" + phAPI + "@h.test/", nil, all(apiLeaked, apiForeign, keyForeign, mapsForeign)},
		{"host", "https://" + strings.ToLower(phKey) + ".h.test/", nil, all(rules.Carry{Credential: "key", State: rules.LeakedInHost})},
		{"CR-07 User-Agent", "https://h.test/", []string{"User-Agent", "x/" + phAPI}, all(apiLeaked)},
		{"CR-07 Cookie", "https://h.test/", []string{"Cookie", "a=b; s=" + phAPI}, all(apiLeaked)},
		{"CR-07 Referer", "https://h.test/", []string{"Referer", "https://x/?k=" + phAPI}, all(apiLeaked)},
		{"header's name", "https://h.test/", []string{"X-" + phKey, "1"}, all(keyLeaked)},
		{"CR-05 the place of another", "https://h.test/", []string{"X-Api-Key", phAPI}, all(apiLeaked, apiForeign, keyForeign, mapsForeign)},
		{"CR-05 two places", "https://h.test/", []string{"Authorization", "Bearer " + phAPI, "X-Copy", phAPI}, all(apiLeaked, apiBound)},
		{"not alone", "https://h.test/", []string{"Authorization", "Bearer x" + phAPI}, all(apiLeaked, apiForeign, keyForeign, mapsForeign)},
		{"twice", "https://h.test/", []string{"Authorization", "Bearer " + phAPI, "Authorization", "Bearer " + phAPI}, all(apiBound, apiForeign)},
		{"CR-14 caller's own", "https://h.test/", []string{"Authorization", "Bearer ATTACKER"}, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 beside the placeholder", "https://h.test/", []string{"Authorization", "Bearer " + phAPI, "Authorization", "Bearer ATTACKER"}, all(apiBound, apiForeign, keyForeign, mapsForeign)},
		{"CR-14 in another field", "https://h.test/", []string{"Authorization", "Bearer " + phAPI, "X-Auth-Token", "ATTACKER"}, all(apiBound, apiForeign, keyForeign, mapsForeign)},
		{"CR-14 with underscores", "https://h.test/", []string{"X_Api_Key", "ATTACKER"}, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 in lower case", "https://h.test/", []string{"authorization", "ATTACKER"}, all(apiForeign, keyForeign, mapsForeign)},
		{"SG-07 presigned", "https://h.test/?X-Amz-Signature=ab", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"SG-07 signature version 2", "https://h.test/?AWSAccessKeyId=AKIA&Expires=1&Signature=ab", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"SG-07 Google's older one", "https://h.test/?GoogleAccessId=x&Signature=ab", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"SG-07 shared access", "https://h.test/?sig=ab&sv=2024-01-01", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"twin, a version alone", "https://h.test/?sv=2024-01-01&Signature=ab", nil, nil},
		{"twin, sig alone", "https://h.test/?sig=ab", nil, nil},
		{"CR-14 oauth_token", "https://h.test/?oauth_token=ATTACKER", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 jwt", "https://h.test/?jwt=ATTACKER", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 authToken", "https://h.test/?authToken=ATTACKER", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 api-token", "https://h.test/?api-token=ATTACKER", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 an item of a list", "https://h.test/?access_token[]=ATTACKER", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 X-Algolia-API-Key", "https://h.test/", []string{"X-Algolia-Api-Key", "ATTACKER"}, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 X-Session-Token", "https://h.test/", []string{"X-Session-Token", "ATTACKER"}, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 X-User-Token", "https://h.test/", []string{"X-User-Token", "ATTACKER"}, all(apiForeign, keyForeign, mapsForeign)},
		{"CR-14 X-Original-Authorization", "https://h.test/", []string{"X-Original-Authorization", "ATTACKER"}, all(apiForeign, keyForeign, mapsForeign)},
		{"parameter, an item of a list", "https://h.test/?key[]=ATTACKER", nil, all(mapsForeign)},
		{"parameter, an item of a list, escaped", "https://h.test/?key%5B0%5d=" + phMaps, nil, all(mapsForeign, mapsLeaked)},
		{"SG-07 presigned, escaped name", "https://h.test/?a=1&X-%41mz-Credential=ab", nil, all(apiForeign, keyForeign, mapsForeign)},
		{"parameter, caller's own", "https://h.test/?key=ATTACKER", nil, all(mapsForeign)},
		{"parameter, twice", "https://h.test/?key=" + phMaps + "&key=ATTACKER", nil, all(mapsForeign, mapsBound)},
		{"parameter, another spelling", "https://h.test/?Key=" + phMaps, nil, all(mapsForeign, mapsLeaked)},
		{"parameter, behind a semicolon", "https://h.test/?a=1;key=" + phMaps, nil, all(mapsForeign, mapsLeaked)},
		{"parameter of another", "https://h.test/?key=" + phAPI, nil, all(apiLeaked, mapsForeign)},
		{"percent-encoded once", "https://h.test/?q=" + percentAll(phAPI), nil, all(apiLeaked)},
		{"percent-encoded twice", "https://h.test/?q=" + url.QueryEscape(percentAll(phAPI)), nil, all(apiLeaked)},
		{"percent-encoded in part", "https://h.test/sk%5ftest_Pl%41cEhOlDeR0000000000001", nil, all(apiLeaked)},
		{"base64", "https://h.test/", []string{"X-Data", b64(`{"token":"` + phAPI + `"}`)}, all(apiLeaked)},
		{"base64, next offset", "https://h.test/", []string{"X-Data", b64(`{"tokens":"` + phAPI + `"}`)}, all(apiLeaked)},
		{"base64, last offset", "https://h.test/", []string{"X-Data", b64(`{"tokenss":"` + phAPI + `"}`)}, all(apiLeaked)},
		{"base64 in a query", "https://h.test/?d=" + url.QueryEscape(b64("xx"+phAPI)), nil, all(apiLeaked)},
		{"hexadecimal", "https://h.test/" + hex.EncodeToString([]byte(phAPI)), nil, all(apiLeaked)},
		{"JSON escapes", "https://h.test/", []string{"X-Data", `{"k":"\u0073k\u005ftest_PlAcEhOlDeR0000000000001"}`}, all(apiLeaked)},
		{"JSON escapes, percent-encoded", "https://h.test/?q=" + url.QueryEscape(`\u0073k_test_PlAcEhOlDeR0000000000001`), nil, all(apiLeaked)},
		// Twins.
		{"nothing", "https://h.test/v1?a=b", []string{"User-Agent", "curl/8", "Accept", "*/*"}, nil},
		{"bound, bearer", "https://h.test/", []string{"Authorization", "Bearer " + phAPI}, all(apiBound)},
		{"bound, scheme in lower case", "https://h.test/", []string{"Authorization", "bearer  " + phAPI}, all(apiBound)},
		{"bound, another scheme", "https://h.test/", []string{"Authorization", "token " + phAPI}, all(apiBound)},
		{"bound, basic password", "https://h.test/", []string{"Authorization", "Basic " + b64("git:"+phAPI)}, all(apiBound)},
		{"bound, basic user", "https://h.test/", []string{"Authorization", "Basic " + b64(phAPI+":")}, all(apiBound)},
		{"bound, header", "https://h.test/", []string{"X-Api-Key", phKey}, all(keyBound)},
		{"bound, two", "https://h.test/", []string{"X-Api-Key", phKey, "Authorization", "Bearer " + phAPI}, all(apiBound, keyBound)},
		{"bound, parameter", "https://h.test/?a=1&key=" + phMaps, nil, all(mapsBound)},
		{"empty field", "https://h.test/", []string{"Authorization", " "}, nil},
		{"broken escapes", "https://h.test/?a=%zz%4", []string{"X-Data", `\u00\x\`}, nil},
		{"reversed is another text", "https://h.test/?a=" + "1000000000000ReDlOhEcAlP_tset_ks", nil, nil},
	}
	c := finder()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := c.Find("cell1", request("GET", tt.url, tt.header...))
			sorted := cmpopts.SortSlices(func(a, b rules.Carry) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
			if d := cmp.Diff(tt.want, got, sorted); d != "" {
				t.Errorf("Find (-want +got):\n%s", d)
			}
			for _, cell := range []string{"bare", "unknown", ""} { // to them the placeholders are somebody else's
				for _, carry := range c.Find(cell, request("GET", tt.url, tt.header...)) {
					if carry.State != rules.Leaked && carry.State != rules.LeakedInHost {
						t.Errorf("Find in cell %q has %v, want leaks alone", cell, carry)
					}
				}
			}
		})
	}
}

func percentAll(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02x", s[i])
	}
	return b.String()
}

func TestFindTrailers(t *testing.T) {
	c := finder()
	r := request("POST", "https://h.test/")
	r.Trailer = http.Header{"X-Api-Key": nil, "X-" + phAPI: nil, "X-Late": {phMaps}}
	want := []rules.Carry{apiLeaked, mapsLeaked}
	if d := cmp.Diff(want, c.Find("cell1", r)); d != "" {
		t.Errorf("Find (-want +got):\n%s", d)
	}
}

// TestFindMeetsRules: what Find tells is what the policy refuses for.
func TestFindMeetsRules(t *testing.T) {
	k := newKit(t)
	f := k.grant("cell1", "run1", "api", "key")
	ph, other := f.Grants[0].Placeholder, f.Grants[1].Placeholder
	tests := []struct {
		name, url string
		header    []string
		want      rules.Reason
	}{
		{"CR-05 allowed host, not bound", "https://ok.test/", []string{"Authorization", "Bearer " + ph}, rules.PlaceholderLeak},
		{"CR-05 credential of another rule", "https://key.test/", []string{"Authorization", "Bearer " + ph}, rules.PlaceholderLeak},
		{"CR-07", "https://api.test/v1/x", []string{"Authorization", "Bearer " + ph, "Referer", ph}, rules.PlaceholderLeak},
		{"CR-04", "https://api.test/v1/" + ph, nil, rules.PlaceholderLeak},
		{"CR-14", "https://api.test/v1/x", []string{"Authorization", "Bearer ATTACKER"}, rules.ForeignCredential},
		{"CR-14 other field", "https://api.test/v1/x", []string{"X-Api-Key", "ATTACKER"}, rules.ForeignCredential},
		{"CR-03", "http://api.test/v1/x", []string{"Authorization", "Bearer " + ph}, rules.CredentialNeedsTLS},
		{"twin, bound", "https://api.test/v1/x", []string{"Authorization", "Bearer " + ph}, ""},
		{"twin, the other", "https://key.test/", []string{"X-Api-Key", other}, ""},
		{"twin, nothing carried", "https://api.test/v1/x", nil, ""},
		{"twin, a key of one's own where nothing is granted", "https://ok.test/", []string{"Authorization", "Bearer MINE"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := request("GET", tt.url, tt.header...)
			p, err := admit(t, "cell1", "run1", r, k.client.Find("cell1", r))
			if tt.want != "" {
				wantDenied(t, err, tt.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := k.client.Inject(t.Context(), p, r); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTwoCredentialsOfOneHost: each goes where its own rule grants it, whichever
// other grant has a place that takes keys; in the rule of the other it is a leak.
func TestTwoCredentialsOfOneHost(t *testing.T) {
	aws := control.Place{Type: "aws-sigv4", Header: "Authorization"}
	places := []control.Place{
		{Type: "bearer", Header: "Authorization"},
		{Type: "header", Header: "X-Api-Key"},
		{Type: "query", Header: "api_key"},
		{Type: "bearer", Header: "Authorization", Own: "header:X-Api-Key"},
		aws, aws,
	}
	var doc control.CellFile
	doc.Cell, doc.Run = "cell1", "run1"
	for i, place := range places {
		doc.Grants = append(doc.Grants, control.Grant{
			Credential: fmt.Sprint("m", i), Placeholder: fmt.Sprintf("ph%dffffffffffffffffffffffffff", i), Place: place,
		})
	}
	c := broker.NewClient("/nowhere")
	c.Attach(doc)
	ph := func(i int) string { return doc.Grants[i].Placeholder }
	scope := "%2F20260101%2Feu-west-1%2Fs3%2Faws4_request"
	sent := []*http.Request{
		request("GET", "https://h.test/m0/x", "Authorization", "Bearer "+ph(0)),
		request("GET", "https://h.test/m1/x", "X-Api-Key", ph(1)),
		request("GET", "https://h.test/m2/x?api_key="+ph(2)),
		request("GET", "https://h.test/m3/x", "Authorization", "Bearer "+ph(3)),
		request("GET", "https://h.test/m4/x", "Authorization", "AWS4-HMAC-SHA256 Credential="+ph(4)+"/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host, Signature=ab"),
		request("GET", "https://h.test/m5/x?X-Amz-Signature=ab&X-Amz-Credential="+ph(5)+scope),
	}
	for i, r := range sent {
		want := []rules.Carry{{Credential: fmt.Sprint("m", i), State: rules.Bound}}
		if d := cmp.Diff(want, c.Find("cell1", r)); d != "" {
			t.Errorf("m%d (-want +got):\n%s", i, d)
		}
		r.Header.Add("X-Auth-Token", "ATTACKER")
		if n := len(c.Find("cell1", r)); n != len(places)+1 {
			t.Errorf("m%d beside a key of one's own: %d carries, want %d", i, n, len(places)+1)
		}
	}
}

// realistic is a request as a browser-like client sends it, without a credential.
func realistic() *http.Request {
	return request("GET", "https://h.test/v1/items/42?page=3&sort=name&filter=a%20b%2Cc",
		"User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
		"Accept-Language", "en-US,en;q=0.5", "Accept-Encoding", "gzip, deflate, br, zstd", "Referer", "https://h.test/v1/items?page=2",
		"Cookie", "session=8f14e45fceea167a5a36dedd4bea2543; theme=dark; consent=all", "If-None-Match", `W/"33a64df551425fcc55e4d42a148795d9f25f89d4"`)
}

func TestFindDoesNotAllocate(t *testing.T) {
	c, r := finder(), realistic()
	if n := testing.AllocsPerRun(200, func() {
		if c.Find("cell1", r) != nil {
			t.Error("found something")
		}
	}); n != 0 {
		t.Errorf("%v allocations a request, want 0", n)
	}
}

func BenchmarkFind(b *testing.B) {
	c := finder()
	for _, bb := range []struct {
		name, cell string
		r          *http.Request
	}{
		{"no grants", "bare", realistic()},
		{"nothing carried", "cell1", realistic()},
		{"bound", "cell1", request("GET", "https://h.test/v1/x", "Authorization", "Bearer "+phAPI)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Find(bb.cell, bb.r)
			}
		})
	}
}

// FuzzFind: a placeholder that stands anywhere in plain is found, and nothing
// that a sandbox sends makes the search fail.
func FuzzFind(f *testing.F) {
	f.Add("Authorization", "Bearer "+phAPI, "/x", "a=b")
	f.Add("X-Data", `\u0073k`, "/%2f", "%%%25252541")
	f.Add("Authorization", "Basic "+b64(phAPI+":x"), "/", "key="+phMaps)
	f.Add("Cookie", phAPI[:10]+"%"+phAPI[10:], "/\\", `\\\x`)
	c := finder()
	f.Fuzz(func(t *testing.T, key, value, path, query string) {
		r := &http.Request{Method: "GET", Host: "h.test", Header: http.Header{key: {value}}, URL: &url.URL{Path: path, RawQuery: query}}
		got := c.Find("cell1", r)
		for i, ph := range []string{phAPI, phKey, phMaps} {
			if !strings.Contains(key+"\n"+value+"\n"+path+"\n"+query, ph) {
				continue
			}
			name := []string{"api", "key", "maps"}[i]
			found := false
			for _, g := range got {
				found = found || g.Credential == name && g.State != rules.Foreign
			}
			if !found {
				t.Errorf("Find(%q: %q, %q ? %q) = %v, want %s", key, value, path, query, got, name)
			}
		}
	})
}
