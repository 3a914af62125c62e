package broker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sallyport/broker/sign"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// Preview tells what [Client.Find] would find in the head of a request of a run that
// is granted some credentials: it is for people who ask beforehand. It asks nobody
// and needs no secret. The placeholder of a run is not known then; in its stead
// stands what [PreviewPlaceholder] returns. Of a credential that docs do not
// describe only the places are known in which any API takes keys.
func Preview(granted []string, docs []policyfile.Credential, r *http.Request) ([]rules.Carry, error) {
	grants := make([]control.Grant, 0, len(granted))
	for _, name := range granted {
		g := control.Grant{Credential: name, Placeholder: PreviewPlaceholder(name)}
		if i := slices.IndexFunc(docs, func(c policyfile.Credential) bool { return c.Name == name }); i >= 0 {
			scheme, err := sign.New(docs[i].Scheme, sign.Config{Transport: nobody{}, Now: func() time.Time { return time.Time{} }})
			if err != nil {
				return nil, fmt.Errorf("%scredential %q: %w", prefixWhere(docs[i].Where), name, err)
			}
			b := bound{doc: docs[i], scheme: scheme}
			g.Place = b.place()
		}
		grants = append(grants, g)
	}
	f := newFinder(grants)
	if f == nil {
		return nil, nil
	}
	return f.find(r), nil
}

// PreviewPlaceholder returns what stands for the placeholder of a credential in a
// request that is previewed.
func PreviewPlaceholder(credential string) string { return "placeholder-of-" + credential }

// nobody answers no request: a preview makes none.
type nobody struct{}

func (nobody) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("a preview asks nobody")
}
