// Command sdk is what agents write with vendors' libraries for Go: the tests of
// test/clients run it in a cell, with placeholders for keys. It is a module of its
// own, so that those libraries are none of Sallyport's.
//
//	sdk registry               serves a registry on loopback, and prints its address
//	sdk push|pull REFERENCE    with REGISTRY_PASSWORD; prints the image's digest
//	sdk s3 BUCKET KEY TEXT     puts and gets an object, with AWS_ACCESS_KEY_ID and its secret
package main

import (
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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sdk:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	switch {
	case len(args) == 1 && args[0] == "registry":
		return serve(out)
	case len(args) == 2 && args[0] == "push":
		return push(ctx, out, args[1])
	case len(args) == 2 && args[0] == "pull":
		return pull(ctx, out, args[1])
	case len(args) == 4 && args[0] == "s3":
		return object(ctx, out, args[1], args[2], args[3])
	default:
		return errors.New("usage: sdk registry | push REFERENCE | pull REFERENCE | s3 BUCKET KEY TEXT")
	}
}

func serve(out io.Writer) error {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.Addr())
	s := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: time.Minute}
	return s.Serve(l)
}

// options are what a program gives that has a password.
func options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(&authn.Basic{Username: "bot", Password: os.Getenv("REGISTRY_PASSWORD")}),
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1}),
	}
}

func push(ctx context.Context, out io.Writer, reference string) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	img, err := random.Image(100_000, 3)
	if err != nil {
		return err
	}
	if err := remote.Write(ref, img, options(ctx)...); err != nil {
		return err
	}
	digest, err := img.Digest()
	fmt.Fprintln(out, digest)
	return err
}

func pull(ctx context.Context, out io.Writer, reference string) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	img, err := remote.Image(ref, options(ctx)...)
	if err != nil {
		return err
	}
	if err := validate.Image(img); err != nil { // reads every layer
		return err
	}
	digest, err := img.Digest()
	fmt.Fprintln(out, digest)
	return err
}

func object(ctx context.Context, out io.Writer, bucket, key, text string) error {
	client := s3.New(s3.Options{
		Region: os.Getenv("AWS_DEFAULT_REGION"), RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY")}, nil
		}),
	})
	if _, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(text)}); err != nil {
		return err
	}
	got, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return err
	}
	defer got.Body.Close()
	_, err = io.Copy(out, got.Body)
	return err
}
