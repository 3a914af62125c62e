package sign

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sallyport/broker/secret"
	"sallyport/control"
	"sallyport/rules/policyfile"
)

// azureKey is the shared key of an Azure Storage account ("Authorize with Shared
// Key" in the REST API reference of Azure Storage), for blobs, queues and files.
// The SDK in the sandbox signs with a placeholder; the broker signs anew.
type azureKey struct{ account string }

// azureVersion is said where the program does not say which version of the API it
// speaks.
const azureVersion = "2021-12-02"

func newAzureKey(s policyfile.Scheme) (Scheme, error) {
	if s.Azure.Account == "" {
		return nil, errors.New(`type "azure-storage" needs the name of the account`)
	}
	return azureKey{s.Azure.Account}, nil
}

func (a azureKey) Place() control.Place {
	return control.Place{Type: "azure-storage", Header: "Authorization", Fields: true, Name: a.account}
}

// azureSecret reads a key, or a connection string that holds one.
func (a azureKey) azureSecret(v secret.Value) (text string, key []byte, err error) {
	text = strings.TrimSpace(string(v.Reveal()))
	if strings.Contains(text, "AccountKey=") {
		members := connectionString(text)
		if members["AccountName"] != a.account {
			return "", nil, errors.New("the connection string is of another account")
		}
		text = members["AccountKey"]
	}
	key, err = base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) < 32 {
		return "", nil, errors.New("the secret is not an account's key in base64, nor a connection string with one")
	}
	return text, key, nil
}

func connectionString(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		if name, value, ok := strings.Cut(part, "="); ok {
			out[strings.TrimSpace(name)] = value
		}
	}
	return out
}

func (a azureKey) Check(v secret.Value) error {
	_, _, err := a.azureSecret(v)
	return err
}

// Shapes implements [Shaper].
func (a azureKey) Shapes(v secret.Value) ([]string, error) {
	text, _, err := a.azureSecret(v)
	return []string{text}, err
}

// Document implements [Documenter]: a connection string becomes one with the
// placeholder for a key; a bare key needs none.
func (a azureKey) Document(v secret.Value, placeholder string) (text, id string, err error) {
	key, _, err := a.azureSecret(v)
	whole := strings.TrimSpace(string(v.Reveal()))
	if err != nil || key == whole {
		return "", "", err
	}
	return strings.Replace(whole, key, placeholder, 1), placeholder, nil
}

func (a azureKey) Sign(_ context.Context, v secret.Value, r Request) (Changes, error) {
	_, key, err := a.azureSecret(v)
	if err != nil {
		return Changes{}, err
	}
	params, err := url.ParseQuery(r.Query)
	if err != nil {
		return Changes{}, unfit("the query has a broken escape")
	}
	if params.Has("sig") {
		return Changes{}, unfit("the request holds a shared access signature of its own")
	}
	set := map[string][]string{
		"X-Ms-Date":    {r.Now.UTC().Format(http.TimeFormat)},
		"X-Ms-Version": {cmp.Or(azureField(r.Header["X-Ms-Version"]), azureVersion)},
	}
	toSign := azureCanonical(r, set, params, a.account)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(toSign))
	set["Authorization"] = []string{"SharedKey " + a.account + ":" + base64.StdEncoding.EncodeToString(mac.Sum(nil))}
	return Changes{Set: set, Remove: []string{"Date"}}, nil
}

// azureCanonical is the string that is signed.
func azureCanonical(r Request, set map[string][]string, params url.Values, account string) string {
	length := azureField(r.Header["Content-Length"])
	if length == "0" {
		length = "" // since version 2015-02-21
	}
	lines := []string{r.Method, azureField(r.Header["Content-Encoding"]), azureField(r.Header["Content-Language"]), length}
	for _, name := range []string{"Content-Md5", "Content-Type"} {
		lines = append(lines, azureField(r.Header[name]))
	}
	lines = append(lines, "") // X-Ms-Date stands in for Date
	for _, name := range []string{"If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range"} {
		lines = append(lines, azureField(r.Header[name]))
	}
	fields := map[string]string{}
	for _, h := range []map[string][]string{r.Header, set} {
		for name, values := range h {
			if n := lower(name); strings.HasPrefix(n, "x-ms-") {
				fields[n] = azureField(values)
			}
		}
	}
	for _, name := range slices.SortedFunc(slices.Values(sortedKeys(fields)), azureOrder) {
		lines = append(lines, name+":"+fields[name])
	}
	return strings.Join(lines, "\n") + "\n" + azureResource(r.Path.String(), params, account)
}

func azureResource(path string, params url.Values, account string) string {
	names := map[string][]string{}
	for name, values := range params {
		names[lower(name)] = append(names[lower(name)], values...)
	}
	var out strings.Builder
	out.WriteString("/" + account + cmp.Or(path, "/"))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out.WriteString("\n" + name + ":" + strings.Join(slices.Sorted(slices.Values(names[name])), ","))
	}
	return out.String()
}

// azureField writes a field in one line, with its blanks as they are sent.
func azureField(values []string) string { return strings.TrimSpace(strings.Join(values, ",")) }

// azureOrder is the order of fields: Azure compares as people sort words, with
// hyphens counting only where nothing else differs, and underscores before digits
// before letters.
func azureOrder(a, b string) int {
	if c := cmp.Compare(azureWord(a), azureWord(b)); c != 0 {
		return c
	}
	for i := range min(len(a), len(b)) {
		switch a[i] {
		case b[i]:
		case '-':
			return 1
		default:
			return -1
		}
	}
	return cmp.Compare(len(a), len(b))
}

func azureWord(s string) string { return strings.NewReplacer("-", "", "_", "!").Replace(s) }
