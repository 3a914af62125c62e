// Command probe is the work of images that have nothing else in them: it says
// what it is given.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	fmt.Println("user", os.Getuid(), os.Getgid())
	for _, name := range []string{"HTTP_PROXY", "ALL_PROXY", "SSL_CERT_DIR", "FROM_IMAGE"} {
		value, ok := os.LookupEnv(name)
		fmt.Println(name, ok, value)
	}
	for _, path := range os.Args[1:] {
		data, err := os.ReadFile(path)
		fmt.Println("file", path, len(data), err)
	}
	// A volume of the image must be writable, bounded and in memory.
	err := os.WriteFile("/data/x", make([]byte, 1<<20), 0o600)
	var fs syscall.Statfs_t
	statErr := syscall.Statfs("/data", &fs)
	const tmpfs = 0x01021994
	fmt.Println("volume", err, statErr, fs.Type == tmpfs, fs.Blocks*uint64(fs.Bsize))
}
