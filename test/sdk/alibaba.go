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
		AccessKeyId: dara.String(os.Getenv("ALIBABA_CLOUD_ACCESS_KEY_ID")), AccessKeySecret: dara.String(os.Getenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET")),
		Endpoint: &args[0],
	})
	if err != nil {
		return err
	}
	got, err := c.CallApi(&openapimodels.Params{
		Action: dara.String("DescribeInstances"), Version: dara.String("2014-05-26"), Protocol: dara.String("HTTPS"), Pathname: dara.String("/"),
		Method: dara.String("POST"), AuthType: dara.String("AK"), Style: dara.String("RPC"), ReqBodyType: dara.String("json"), BodyType: dara.String("json"),
	}, &openapimodels.OpenApiRequest{
		Query: map[string]*string{"Zone": dara.String("a b*~"), "Empty": dara.String("")}, Body: map[string]any{"Text": args[1]},
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
	again.Method, again.Pathname = &r.Method, dara.String(r.URL.EscapedPath())
	again.Headers = map[string]*string{"host": &r.Host}
	for name := range r.Header {
		again.Headers[name] = dara.String(r.Header.Get(name))
	}
	again.Query = map[string]*string{}
	for name, values := range r.URL.Query() {
		again.Query[name] = &values[0]
	}
	want := openapiutil.GetAuthorization(again, dara.String("ACS3-HMAC-SHA256"), &payload, &k.id, &k.key)
	return same(r.Header.Get("Authorization"), *want, at, nil)
}
