package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/volcengine/volc-sdk-golang/base"
)

// callVolcengine gets and posts, with the keys that the library takes from the
// environment.
func callVolcengine(_ context.Context, out io.Writer, args []string) error {
	c := base.NewClient(&base.ServiceInfo{
		Timeout: time.Minute, Scheme: "https", Host: args[0], Header: http.Header{"Accept": {"application/json"}},
		Credentials: base.Credentials{Region: "cn-north-1", Service: "iam"},
	}, map[string]*base.ApiInfo{
		"ListUsers":  {Method: http.MethodGet, Path: "/", Query: url.Values{"Action": {"ListUsers"}, "Version": {"2018-01-01"}}},
		"CreateUser": {Method: http.MethodPost, Path: "/", Query: url.Values{"Action": {"CreateUser"}, "Version": {"2018-01-01"}}},
	})
	c.Client = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment}} // its own takes no proxy
	for _, call := range []func() ([]byte, int, error){
		func() ([]byte, int, error) { return c.Query("ListUsers", url.Values{"Limit": {args[1]}}) },
		func() ([]byte, int, error) { return c.Json("CreateUser", nil, fmt.Sprintf(`{"Text":%q}`, args[1])) },
	} {
		got, _, err := call()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\n", got)
	}
	return nil
}

// verifyVolcengine has the SDK sign what came once more.
func (k keys) verifyVolcengine(r *http.Request, body []byte) error {
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Date"))
	if err != nil {
		return err
	}
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(bytes.NewReader(body))
	again.Header.Del("X-Content-Sha256") // it is made anew, and signed
	base.Sign4(again, base.Credentials{AccessKeyID: k.id, SecretAccessKey: k.key, SessionToken: k.token, Region: "cn-north-1", Service: "iam"})
	return same(r.Header.Get("Authorization"), again.Header.Get("Authorization"), at, nil)
}
