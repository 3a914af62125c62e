// Command sdk is what agents write with vendors' libraries for Go: the tests of
// test/clients run it in a cell, with placeholders for keys. The servers that judge
// what arrives are here too, since they verify with the vendors' own code. It is a
// module of its own, so that those libraries are none of Sallyport's.
//
//	sdk serve NAME             serves on loopback with SDK_ID, SDK_KEY and SDK_TOKEN for
//	                           true keys, and prints its address: registry, azure,
//	                           tencent, alibaba or volcengine
//	sdk push|pull REFERENCE    with REGISTRY_PASSWORD; prints the image's digest
//	sdk s3 BUCKET KEY TEXT     puts and gets an object, with AWS_ACCESS_KEY_ID and its secret
//	sdk azure-sas ACCOUNT CONTAINER
//	                           prints a shared access signature of the key SDK_KEY
//	sdk azure-put ACCOUNT CONTAINER BLOB TEXT
//	sdk azure-get ACCOUNT CONTAINER BLOB
//	sdk azure-list ACCOUNT CONTAINER
//	                           with AZURE_STORAGE_CONNECTION_STRING, or else with
//	                           AZURE_STORAGE_SAS_TOKEN
//	sdk tencent HOST TEXT      calls an API, with TENCENTCLOUD_SECRET_ID and its key
//	sdk alibaba HOST TEXT      likewise, with ALIBABA_CLOUD_ACCESS_KEY_ID and its secret
//	sdk volcengine HOST TEXT   likewise, with VOLC_ACCESSKEY and VOLC_SECRETKEY
//	sdk google access|self URL gets a URL, with the key file GCP_KEY
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// command is what the first argument names.
type command struct {
	arguments int // that follow
	run       func(ctx context.Context, out io.Writer, args []string) error
}

var commands = map[string]command{
	"serve": {1, serve}, "push": {1, push}, "pull": {1, pull}, "s3": {3, s3Object},
	"azure-sas": {2, azureSAS}, "azure-put": {4, azurePut}, "azure-get": {3, azureGet}, "azure-list": {2, azureList},
	"tencent": {2, callTencent}, "alibaba": {2, callAlibaba}, "volcengine": {2, callVolcengine}, "google": {2, callGoogle},
}

func main() {
	if err := run(context.Background(), os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sdk:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) > 0 {
		if c, ok := commands[args[0]]; ok && len(args) == 1+c.arguments {
			return c.run(ctx, out, args[1:])
		}
	}
	return errors.New("no such command, or not its arguments: go doc")
}
