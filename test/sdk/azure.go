package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"
)

// azureOnce tries once.
func azureOnce() azcore.ClientOptions {
	return azcore.ClientOptions{Retry: policy.RetryOptions{MaxRetries: -1}}
}

func azureClient(account string) (*azblob.Client, error) {
	opts := &azblob.ClientOptions{ClientOptions: azureOnce()}
	if text := os.Getenv("AZURE_STORAGE_CONNECTION_STRING"); text != "" {
		return azblob.NewClientFromConnectionString(text, opts)
	}
	return azblob.NewClientWithNoCredential("https://"+account+".blob.core.windows.net/?"+os.Getenv("AZURE_STORAGE_SAS_TOKEN"), opts)
}

// azureSAS is what an owner does who gives a token to somebody.
func azureSAS(_ context.Context, out io.Writer, args []string) error {
	cred, err := azblob.NewSharedKeyCredential(args[0], os.Getenv("SDK_KEY"))
	if err != nil {
		return err
	}
	p := sas.ContainerPermissions{Read: true, Write: true, List: true}
	q, err := sas.BlobSignatureValues{
		Protocol: sas.ProtocolHTTPS, ExpiryTime: time.Now().Add(maxSAS / 2), Permissions: p.String(), ContainerName: args[1],
	}.SignWithSharedKey(cred)
	fmt.Fprint(out, q.Encode())
	return err
}

func azurePut(ctx context.Context, _ io.Writer, args []string) error {
	c, err := azureClient(args[0])
	if err != nil {
		return err
	}
	_, err = c.UploadBuffer(ctx, args[1], args[2], []byte(args[3]), &azblob.UploadBufferOptions{Metadata: map[string]*string{"made_by": &args[1]}})
	return err
}

func azureGet(ctx context.Context, out io.Writer, args []string) error {
	c, err := azureClient(args[0])
	if err != nil {
		return err
	}
	got, err := c.DownloadStream(ctx, args[1], args[2], nil)
	if err != nil {
		return err
	}
	defer got.Body.Close()
	_, err = io.Copy(out, got.Body)
	return err
}

func azureList(ctx context.Context, out io.Writer, args []string) error {
	c, err := azureClient(args[0])
	if err != nil {
		return err
	}
	for pages := c.NewListBlobsFlatPager(args[1], &azblob.ListBlobsFlatOptions{Include: container.ListBlobsInclude{Metadata: true, Tags: true}}); pages.More(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, b := range page.Segment.BlobItems {
			fmt.Fprintln(out, *b.Name)
		}
	}
	return nil
}
