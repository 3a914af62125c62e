package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// callGoogle gets a URL with a token that is exchanged for a statement of the key
// file, or with the statement itself.
func callGoogle(ctx context.Context, out io.Writer, args []string) error {
	file := []byte(os.Getenv("GCP_KEY"))
	var source oauth2.TokenSource
	if args[0] == "self" {
		var err error
		if source, err = google.JWTAccessTokenSourceFromJSON(file, "https://api.test/"); err != nil {
			return err
		}
	} else {
		c, err := google.JWTConfigFromJSON(file, "https://www.googleapis.com/auth/cloud-platform")
		if err != nil {
			return err
		}
		source = c.TokenSource(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[1], http.NoBody)
	if err != nil {
		return err
	}
	resp, err := oauth2.NewClient(ctx, source).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Fprint(out, resp.StatusCode, " ")
	_, err = io.Copy(out, resp.Body)
	return err
}
