package verify_test

import (
	"os"
	"testing"
)

// tempDir is t.TempDir in memory, where a sync costs nothing.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "audit-test-") //nolint:usetesting // TempDir is on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
