package near_test

import (
	"testing"

	"sallyport/rules/near"
)

func TestHint(t *testing.T) {
	known := []string{"host", "hosts", "methods"}
	for word, want := range map[string]string{
		"hots":   `; did you mean "host"?`,
		"HOSTS":  `; did you mean "hosts"?`,
		"metods": `; did you mean "methods"?`,
		"credit": "",
		"h":      "",
		"":       "",
	} {
		if got := near.Hint(word, known); got != want {
			t.Errorf("Hint(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestWordIsAlone(t *testing.T) {
	known := []string{"host", "hosts", "methods"}
	for word, want := range map[string]string{"metods": "methods", "hots": "", "credit": ""} {
		if got, alone := near.Word(word, known); alone != (want != "") || alone && got != want {
			t.Errorf("Word(%q) = %q, %v, want %q alone", word, got, alone, want)
		}
	}
}
