package sign

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
)

// azureSAS is a shared access signature of Azure Storage ("Create a service SAS"
// and "Create an account SAS" in its REST API reference) that somebody made: parameters
// of the query, of which sig is worth stealing.
type azureSAS struct{}

// SASParams are the parameters of a shared access signature: those that the
// credential brings take the place of what the sandbox sends.
func SASParams() []string {
	return []string{
		"sv", "ss", "srt", "sp", "st", "se", "spr", "sip", "si", "sr", "sdd", "ses", "skoid", "sktid", "skt", "ske", "sks", "skv",
		"saoid", "suoid", "scid", "rscc", "rscd", "rsce", "rscl", "rsct", "tn", "sig",
	}
}

func (azureSAS) Place() control.Place { return control.Place{Type: "azure-sas", Header: "sig"} }

// read returns the parameters of the secret, which may begin with a question mark
// as the portal gives it out.
func (azureSAS) read(v secret.Value) (map[string]string, error) {
	if checkHeaderSafe(v) != nil {
		return nil, errors.New("the secret is not a shared access signature: it has to be one line")
	}
	params, err := url.ParseQuery(strings.TrimPrefix(string(v.Reveal()), "?"))
	if err != nil || params.Get("sv") == "" || params.Get("sig") == "" {
		return nil, errors.New("the secret is not a shared access signature: it lacks sv or sig; to make them of an account's key, write azure-sas: {account: NAME, …}")
	}
	known := map[string]bool{}
	for _, name := range SASParams() {
		known[name] = true
	}
	out := map[string]string{}
	for name, values := range params {
		if !known[name] || len(values) != 1 {
			return nil, errors.New("the secret is not a shared access signature: it has a parameter that is none of one's, or one twice")
		}
		out[name] = values[0]
	}
	return out, nil
}

func (s azureSAS) Check(v secret.Value) error {
	_, err := s.read(v)
	return err
}

// Shapes implements [Shaper].
func (s azureSAS) Shapes(v secret.Value) ([]string, error) {
	params, err := s.read(v)
	return []string{params["sig"]}, err
}

// Document implements [Documenter]: the same parameters, with the placeholder for
// a signature.
func (s azureSAS) Document(v secret.Value, placeholder string) (text, id string, err error) {
	params, err := s.read(v)
	if err != nil {
		return "", "", err
	}
	params["sig"] = placeholder
	return sasText(params), placeholder, nil
}

// sasText writes a signature as it stands in a query.
func sasText(params map[string]string) string {
	parts := make([]string, 0, len(params))
	for _, name := range sortedKeys(params) {
		parts = append(parts, name+"="+url.QueryEscape(params[name]))
	}
	return strings.Join(parts, "&")
}

func (s azureSAS) Sign(_ context.Context, v secret.Value, _ Request) (Changes, error) {
	params, err := s.read(v)
	if err != nil {
		return Changes{}, err
	}
	return Changes{Query: params, Expose: []string{params["sig"]}}, nil
}
