package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// keys are the true ones of an account.
type keys struct{ id, key, token string }

// serve serves one of the servers until it is killed.
func serve(_ context.Context, out io.Writer, args []string) error {
	k := keys{os.Getenv("SDK_ID"), os.Getenv("SDK_KEY"), os.Getenv("SDK_TOKEN")}
	var h http.Handler
	var err error
	switch args[0] {
	case "registry":
		h = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	case "azure":
		h, err = newAzureOrigin(k)
	case "tencent":
		h = judged(k.verifyTencent, echo)
	case "alibaba":
		h = judged(k.verifyAlibaba, echo)
	case "volcengine":
		h = judged(k.verifyVolcengine, echo)
	default:
		err = fmt.Errorf("no server %q", args[0])
	}
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.Addr())
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	return s.Serve(l)
}

// maxAge is how old a signature may be, as vendors have it.
const maxAge = 15 * time.Minute

// judged refuses what verify refuses, saying why, and lets answer answer the rest.
func judged(verify func(*http.Request, []byte) error, answer func(http.ResponseWriter, *http.Request, []byte)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = verify(r, body)
		}
		if err != nil {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"Code":"SignatureDoesNotMatch","Message":%q}`, err)
			return
		}
		answer(w, r, body)
	})
}

// echo answers as the APIs of clouds do, with what it was told.
func echo(w http.ResponseWriter, r *http.Request, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"Response":{"RequestId":"1","Said":%q},"RequestId":"1"}`, r.URL.RawQuery+string(body))
}

// same compares the signature that came with the one that the vendor's code makes.
func same(got, want string, at time.Time, err error) error {
	switch {
	case err != nil:
		return err
	case time.Since(at).Abs() > maxAge:
		return fmt.Errorf("the request is of %v", at)
	case got == "" || got != want:
		return errors.New("the signature is another")
	}
	return nil
}

// captured is a way out that leads nowhere: it keeps what a vendor's code signed.
type captured struct {
	auth string
	body []byte
}

// RoundTrip implements [http.RoundTripper].
func (c *captured) RoundTrip(r *http.Request) (*http.Response, error) {
	c.auth = r.Header.Get("Authorization")
	if r.Body != nil {
		var err error
		if c.body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	return &http.Response{
		StatusCode: http.StatusNotFound, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader("{}")),
	}, nil
}

// Do is what Azure calls it.
func (c *captured) Do(r *http.Request) (*http.Response, error) { return c.RoundTrip(r) }

// signs reports whether the body is the one that was signed.
func (c *captured) signs(body []byte) error {
	if !bytes.Equal(c.body, body) {
		return errors.New("the body is another")
	}
	return nil
}
