package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	openapi "github.com/alibabacloud-go/darabonba-openapi/v2/client"
	openapimodels "github.com/alibabacloud-go/darabonba-openapi/v2/models"
	openapiutil "github.com/alibabacloud-go/darabonba-openapi/v2/utils"
	"github.com/alibabacloud-go/tea/dara"
)

func callAlibaba(_ context.Context, out io.Writer, args []string) error {
	c, err := openapi.NewClient(&openapimodels.Config{
		AccessKeyId: new(os.Getenv("ALIBABA_CLOUD_ACCESS_KEY_ID")), AccessKeySecret: new(os.Getenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET")),
		Endpoint: &args[0],
	})
	if err != nil {
		return err
	}
	got, err := c.CallApi(&openapimodels.Params{
		Action: new("DescribeInstances"), Version: new("2014-05-26"), Protocol: new("HTTPS"), Pathname: new("/"),
		Method: new("POST"), AuthType: new("AK"), Style: new("RPC"), ReqBodyType: new("json"), BodyType: new("json"),
	}, &openapimodels.OpenApiRequest{
		Query: map[string]*string{"Zone": new("a b*~"), "Empty": new("")}, Body: map[string]any{"Text": args[1]},
	}, &dara.RuntimeOptions{})
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(got["body"])
}

// verifyAlibaba has the SDK's own function sign what came once more.
func (k keys) verifyAlibaba(r *http.Request, body []byte) error {
	sum := sha256.Sum256(body)
	payload := hex.EncodeToString(sum[:])
	at, err := time.Parse(time.RFC3339, r.Header.Get("X-Acs-Date"))
	switch {
	case err != nil:
		return err
	case r.Header.Get("X-Acs-Content-Sha256") != payload:
		return errors.New("the body does not have its hash")
	case r.Header.Get("X-Acs-Security-Token") != k.token:
		return errors.New("the token is another")
	}
	again := dara.NewRequest()
	again.Method, again.Pathname = &r.Method, new(r.URL.EscapedPath())
	again.Headers = map[string]*string{"host": &r.Host}
	for name := range r.Header {
		again.Headers[name] = new(r.Header.Get(name))
	}
	again.Query = map[string]*string{}
	for name, values := range r.URL.Query() {
		again.Query[name] = &values[0]
	}
	want := openapiutil.GetAuthorization(again, new("ACS3-HMAC-SHA256"), &payload, &k.id, &k.key)
	return same(r.Header.Get("Authorization"), *want, at, nil)
}
