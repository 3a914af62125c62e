// Command guest is process 1 of the sandboxes of tests: guest.Main and nothing else.
package main

import (
	"context"
	"os"
	"time"

	"sallyport/launcher/guest"
)

func main() {
	os.Exit(guest.Main(context.Background(), guest.Config{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Now: time.Now,
	}))
}
