package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// options are what a program gives that has a password.
func options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(&authn.Basic{Username: "bot", Password: os.Getenv("REGISTRY_PASSWORD")}),
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1}),
	}
}

func push(ctx context.Context, out io.Writer, args []string) error {
	ref, err := name.ParseReference(args[0])
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

func pull(ctx context.Context, out io.Writer, args []string) error {
	ref, err := name.ParseReference(args[0])
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
