package secret_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"sallyport/broker/secret"
)

const text = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"

type holder struct {
	Name   string
	Public secret.Value
	hidden secret.Value
	ptr    *secret.Value
}

// TestNothingPrints: CR-30.
func TestNothingPrints(t *testing.T) {
	v := secret.New([]byte(text))
	h := holder{"n", v, v, &v}
	var out bytes.Buffer
	for _, x := range []any{v, &v, h, &h, []secret.Value{v}, map[string]secret.Value{"k": v}, []any{h, &h}, fmt.Errorf("wrapped: %v", v)} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%t", "%T", "%p", "%10.3s"} {
			fmt.Fprintf(&out, verb+"\n", x)
		}
		j, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(j)
		for _, log := range []*slog.Logger{slog.New(slog.NewJSONHandler(&out, nil)), slog.New(slog.NewTextHandler(&out, nil))} {
			log.Info("m", "x", x)
		}
	}
	if x, err := xml.Marshal(v); err == nil {
		out.Write(x)
	}
	fmt.Fprintln(&out, errors.Join(fmt.Errorf("%w: %s", errors.New("e"), v)))
	for _, form := range []string{text, text[:8], text[8:16], fmt.Sprintf("%x", text[:8]), fmt.Sprintf("%X", text[:8]), "c2tfdGVzd", "115 107"} {
		if i := strings.Index(out.String(), form); i >= 0 {
			t.Errorf("the output holds %q: %q", form, out.String()[max(0, i-200):i+20])
		}
	}
	if !strings.Contains(out.String(), secret.Redacted) {
		t.Error("twin: nothing was printed at all")
	}
}

func TestRevealAndWipe(t *testing.T) {
	b := []byte(text)
	v := secret.New(b)
	w := v
	if string(v.Reveal()) != text || v.Len() != len(text) || !v.Equal(secret.New([]byte(text))) || v.Equal(secret.New([]byte("x"))) {
		t.Error("twin: the secret is not what it was made of")
	}
	v.Wipe()
	w.Wipe() // twice
	if len(w.Reveal()) != 0 || w.Len() != 0 || !bytes.Equal(b, make([]byte, len(text))) {
		t.Errorf("after Wipe the octets are %q", b)
	}
	var zero secret.Value
	zero.Wipe()
	if zero.Len() != 0 || zero.Reveal() != nil {
		t.Error("the zero Value holds something")
	}
}

// TestGob: an encoder that would look into unexported fields is told nothing.
func TestGob(t *testing.T) {
	var b bytes.Buffer
	v := secret.New([]byte("hunter2-hunter2"))
	if err := gob.NewEncoder(&b).Encode(struct{ Key secret.Value }{v}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hunter2") || !strings.Contains(b.String(), secret.Redacted) {
		t.Errorf("gob writes %q", &b)
	}
}
