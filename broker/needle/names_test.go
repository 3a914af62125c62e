package needle_test

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sallyport/broker/needle"
)

// inName reports whether the name of a host holds a value.
func inName(value, name string) bool {
	_, ok := needle.Next(needle.NewSet(needle.Names([]byte(value), 0)), needle.AppendName(nil, name), 0)
	return ok
}

// labelled cuts a text over labels.
func labelled(text string, size int) string {
	var out []string
	for piece := range slices.Chunk([]byte(text), size) {
		out = append(out, string(piece))
	}
	return strings.Join(out, ".")
}

func TestNamesOfHosts(t *testing.T) {
	const dotted = "ey.J0eXAiOi.JKV1QiLCJhbGciOi"
	raw32, hex32 := base32.StdEncoding.WithPadding(base32.NoPadding), base32.HexEncoding.WithPadding(base32.NoPadding)
	tests := []struct {
		name, value, host string
		want              bool
	}{
		{"another value", value, "sk_test_4eC39HqLyjWDarjtT1zdp7dd.a.test", false},
		{"its beginning", value, value[:len(value)-1] + ".a.test", false},
		{"reversed", value, reverse(value) + ".a.test", false},
		{"base32 of another", value, raw32.EncodeToString([]byte(value[1:])) + ".a.test", false},
		{"something in between", value, value[:9] + ".1." + value[9:] + ".a.test", false},
		{"a short value", "short", "short.a.test", false},
		{"empty", value, "", false},
		{"plain", value, value + ".a.test", true},
		{"within a label", value, "x-" + value + "-y.a.test", true},
		{"other case", value, strings.ToUpper(value) + ".a.test", true},
		{"over labels", value, labelled(value, 7) + ".a.test", true},
		{"over one-octet labels", value, labelled(value, 1) + ".a.test", true},
		{"with dots of its own", dotted, dotted + ".a.test", true},
		{"without dots of its own", dotted, strings.ReplaceAll(dotted, ".", "") + ".a.test", true},
		{"hexadecimal", value, labelled(hex.EncodeToString([]byte("u:"+value)), 60) + ".a.test", true},
		{"hexadecimal, upper case", value, labelled(strings.ToUpper(hex.EncodeToString([]byte(value))), 63) + ".a.test", true},
		{"base64url", value, base64.RawURLEncoding.EncodeToString([]byte(value)) + ".a.test", true},
		{"base64url, lower case", value, strings.ToLower(base64.RawURLEncoding.EncodeToString([]byte("u:"+value))) + ".a.test", true},
		{"base32", value, raw32.EncodeToString([]byte(value)) + ".a.test", true},
		{"base32hex, over labels", value, labelled(hex32.EncodeToString([]byte("abc"+value+"z")), 20) + ".a.test", true},
		{"behind other labels", value, "a.b." + value + ".c.d.test", true},
	}
	for _, tt := range tests {
		if got := inName(tt.value, tt.host); got != tt.want {
			t.Errorf("%s: %v in %q", tt.name, got, tt.host)
		}
	}
}

// Whatever stands around a value, and wherever labels end, it is found.
func TestNamesHoldAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		around := rapid.SliceOfN(rapid.Byte(), 0, 9)
		text := slices.Concat(around.Draw(t, "before"), []byte(value), around.Draw(t, "behind"))
		spell := rapid.SampledFrom([]func([]byte) string{
			hex.EncodeToString, base64.RawURLEncoding.EncodeToString, base32.StdEncoding.EncodeToString, base32.HexEncoding.EncodeToString,
		}).Draw(t, "spelling")
		name := labelled(strings.Trim(spell(text), "="), rapid.IntRange(1, 63).Draw(t, "label")) + ".a.test"
		if !inName(value, name) {
			t.Errorf("not found in %q", name)
		}
	})
}
