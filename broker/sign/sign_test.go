package sign_test

import (
	"encoding/base64"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

const text = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"

func TestNewRefuses(t *testing.T) {
	tests := []struct {
		name string
		spec policyfile.Scheme
		want string
	}{
		{"no type", policyfile.Scheme{}, "not one of"},
		{"unknown type", policyfile.Scheme{Type: "Bearer"}, "not one of"},
		{"header without name", policyfile.Scheme{Type: "header"}, "needs the name"},
		{"header with a blank", policyfile.Scheme{Type: "header", Header: "X Key"}, "not a header name"},
		{"header with a line break", policyfile.Scheme{Type: "header", Header: "X\r\nY"}, "not a header name"},
		{"header that is the message's", policyfile.Scheme{Type: "header", Header: "content-length"}, "cannot hold"},
		{"host header", policyfile.Scheme{Type: "header", Header: "Host"}, "cannot hold"},
		{"prefix with a line break", policyfile.Scheme{Type: "header", Header: "X", Prefix: "a\r\nB: "}, "prefix"},
		{"basic without user name", policyfile.Scheme{Type: "basic"}, "needs a user name"},
		{"basic with a colon", policyfile.Scheme{Type: "basic", Username: "a:b"}, "colon"},
		{"basic with a line break", policyfile.Scheme{Type: "basic", Username: "a\nb"}, "ASCII"},
		{"query without parameter", policyfile.Scheme{Type: "query"}, "needs the name"},
		{"query with a separator", policyfile.Scheme{Type: "query", Param: "a&b"}, "letters"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := sign.New(tt.spec, sign.Config{}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

var good = []struct {
	spec    policyfile.Scheme
	place   control.Place
	changes sign.Changes
}{
	{
		policyfile.Scheme{Type: "bearer"},
		control.Place{Type: "bearer", Header: "Authorization"},
		sign.Changes{Set: map[string][]string{"Authorization": {"Bearer " + text}}, Expose: []string{text}},
	},
	{
		policyfile.Scheme{Type: "header", Header: "x-api-key"},
		control.Place{Type: "header", Header: "X-Api-Key"},
		sign.Changes{Set: map[string][]string{"X-Api-Key": {text}}, Expose: []string{text}},
	},
	{
		policyfile.Scheme{Type: "header", Header: "Authorization", Prefix: "token "},
		control.Place{Type: "header", Header: "Authorization"},
		sign.Changes{Set: map[string][]string{"Authorization": {"token " + text}}, Expose: []string{text}},
	},
	{
		policyfile.Scheme{Type: "basic", Username: "git"},
		control.Place{Type: "basic", Header: "Authorization"},
		sign.Changes{Set: map[string][]string{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+text))}}, Expose: []string{text}},
	},
	{
		policyfile.Scheme{Type: "query", Param: "key"},
		control.Place{Type: "query", Header: "key"},
		sign.Changes{Query: map[string]string{"key": text}, Expose: []string{text}},
	},
}

func TestSign(t *testing.T) {
	for _, tt := range good {
		s, err := sign.New(tt.spec, sign.Config{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Sign(t.Context(), secret.New([]byte(text)), sign.Request{})
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tt.changes, got); d != "" {
			t.Errorf("%+v: (-want +got):\n%s", tt.spec, d)
		}
		if s.Place() != tt.place {
			t.Errorf("%+v: place %+v, want %+v", tt.spec, s.Place(), tt.place)
		}
	}
}

// TestBasicIsWhatServersRead: net/http's own reader is the oracle.
func TestBasicIsWhatServersRead(t *testing.T) {
	s, err := sign.New(policyfile.Scheme{Type: "basic", Username: "x-access-token"}, sign.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := s.Sign(t.Context(), secret.New([]byte("a:b "+text)), sign.Request{})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header = ch.Set
	if u, p, ok := r.BasicAuth(); !ok || u != "x-access-token" || p != "a:b "+text {
		t.Errorf("a server reads %q, %q, %v", u, p, ok)
	}
}

// TestSecretsThatCannotBeSent: CR-12.
func TestSecretsThatCannotBeSent(t *testing.T) {
	bad := map[string]string{
		"line break":     "abcdefgh\r\nX-Evil: 1",
		"bare LF":        "abcdefgh\nx",
		"line end":       text + "\n",
		"NUL":            "abcdefgh\x00x",
		"control":        "abcdefgh\x1bx",
		"DEL":            "abcdefgh\x7f",
		"not ASCII":      "abcdefghü",
		"blank in front": " " + text,
		"tab behind":     text + "\t",
		"long":           strings.Repeat("x", 8<<10+1),
		"empty":          "",
	}
	for _, g := range good {
		s, err := sign.New(g.spec, sign.Config{})
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range bad {
			v := secret.New([]byte(value))
			checked := s.Check(v)
			_, signed := s.Sign(t.Context(), v, sign.Request{})
			if checked == nil || signed == nil {
				t.Errorf("%s, %s: Check = %v, Sign = %v", g.spec.Type, name, checked, signed)
			} else if strings.Contains(checked.Error()+signed.Error(), "abcd") {
				t.Errorf("%s, %s: the error shows the secret: %v", g.spec.Type, name, signed)
			}
		}
		if err := s.Check(secret.New([]byte("with inner blank " + text))); err != nil {
			t.Errorf("twin: %v", err)
		}
	}
}

func TestTypesAreKnown(t *testing.T) {
	for _, typ := range policyfile.Types() {
		if _, err := sign.New(policyfile.Scheme{Type: policyfile.CredentialType(typ), Header: "", Username: ""}, sign.Config{}); err != nil && strings.Contains(err.Error(), "not one of") {
			t.Errorf("type %q is listed and not known", typ)
		}
	}
}
