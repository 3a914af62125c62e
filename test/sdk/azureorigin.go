package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"
)

// azureOrigin is an account of Azure Storage with blobs. It judges with Azure's own
// code: that of the SDK signs what came once more.
type azureOrigin struct {
	account string
	cred    *azblob.SharedKeyCredential

	mu    sync.Mutex
	blobs map[string][]byte
}

func newAzureOrigin(k keys) (http.Handler, error) {
	cred, err := azblob.NewSharedKeyCredential(k.id, k.key)
	if err != nil {
		return nil, err
	}
	o := &azureOrigin{account: k.id, cred: cred, blobs: map[string][]byte{}}
	return judged(o.verify, o.answer), nil
}

func (o *azureOrigin) verify(r *http.Request, _ []byte) error {
	if r.URL.Query().Has("sig") {
		return o.verifySAS(r)
	}
	at, err := http.ParseTime(r.Header.Get("X-Ms-Date"))
	if err != nil {
		return err
	}
	want, err := o.sharedKey(r)
	return same(r.Header.Get("Authorization"), want, at, err)
}

// received is a step of Azure's pipeline that puts what came in the place of what
// the SDK is about to sign.
type received struct{ r *http.Request }

// Do implements [policy.Policy].
func (p received) Do(req *policy.Request) (*http.Response, error) {
	raw := req.Raw()
	raw.Method, raw.Host, raw.Header = p.r.Method, p.r.Host, p.r.Header.Clone()
	raw.URL = &url.URL{Scheme: "https", Host: p.r.Host, Path: p.r.URL.Path, RawPath: p.r.URL.RawPath, RawQuery: p.r.URL.RawQuery}
	raw.Header.Del("Authorization")
	if p.r.ContentLength > 0 { // net/http keeps it elsewhere
		raw.Header.Set("Content-Length", strconv.FormatInt(p.r.ContentLength, 10))
	}
	return req.Next()
}

func (o *azureOrigin) sharedKey(r *http.Request) (string, error) {
	var c captured
	opts := azureOnce()
	opts.Transport, opts.PerCallPolicies = &c, []policy.Policy{received{r}}
	client, err := azblob.NewClientWithSharedKeyCredential("https://"+r.Host+"/", o.cred, &azblob.ClientOptions{ClientOptions: opts})
	if err != nil {
		return "", err
	}
	_, _ = client.DownloadStream(r.Context(), "any", "thing", nil) // it is answered that there is none
	return c.auth, nil
}

// maxSAS is how long a signature may be good for, so that one that was made for ever
// is not taken for one that was made for a request.
const maxSAS = time.Hour

func (o *azureOrigin) verifySAS(r *http.Request) error {
	p := sas.NewQueryParameters(r.URL.Query(), true)
	name, blob, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	var again sas.QueryParameters
	var err error
	if p.ResourceTypes() != "" {
		again, err = sas.AccountSignatureValues{
			Version: p.Version(), Protocol: p.Protocol(), StartTime: p.StartTime(), ExpiryTime: p.ExpiryTime(),
			Permissions: p.Permissions(), IPRange: p.IPRange(), ResourceTypes: p.ResourceTypes(),
		}.SignWithSharedKey(o.cred)
	} else {
		of := blob
		if p.Resource() == "c" {
			of = ""
		}
		again, err = sas.BlobSignatureValues{
			Version: p.Version(), Protocol: p.Protocol(), StartTime: p.StartTime(), ExpiryTime: p.ExpiryTime(),
			Permissions: p.Permissions(), IPRange: p.IPRange(), ContainerName: name, BlobName: of,
		}.SignWithSharedKey(o.cred)
	}
	left := time.Until(p.ExpiryTime())
	switch need, kind := azureNeeds(r, blob); {
	case err != nil:
		return err
	case again.Signature() != p.Signature():
		return errors.New("the signature is another")
	case left <= 0 || left > maxSAS || p.Protocol() != sas.ProtocolHTTPS:
		return fmt.Errorf("it ends at %v, and is for %s", p.ExpiryTime(), p.Protocol())
	case !strings.Contains(p.Permissions(), need):
		return fmt.Errorf("permission %q is not among %q", need, p.Permissions())
	case p.ResourceTypes() != "" && !strings.Contains(p.ResourceTypes(), kind) || p.Resource() == "b" && kind != "o":
		return fmt.Errorf("resource %q is not what it is for", kind)
	}
	return nil
}

// azureNeeds returns the permission and the kind of resource of a request.
func azureNeeds(r *http.Request, blob string) (need, kind string) {
	switch {
	case blob == "":
		return "l", "c"
	case r.Method == http.MethodPut:
		return "w", "o"
	default:
		return "r", "o"
	}
}

func (o *azureOrigin) answer(w http.ResponseWriter, r *http.Request, body []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	data, found := o.blobs[r.URL.Path]
	switch {
	case r.Method == http.MethodPut:
		o.blobs[r.URL.Path] = body
		w.WriteHeader(http.StatusCreated)
	case r.URL.Query().Get("comp") == "list":
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, `<EnumerationResults><Blobs>`)
		for path := range o.blobs {
			if name, ok := strings.CutPrefix(path, r.URL.Path+"/"); ok {
				fmt.Fprint(w, "<Blob><Name>")
				_ = xml.EscapeText(w, []byte(name)) // a writer that fails was told
				fmt.Fprint(w, "</Name><Properties></Properties></Blob>")
			}
		}
		fmt.Fprint(w, `</Blobs><NextMarker/></EnumerationResults>`)
	case found:
		_, _ = w.Write(data)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}
