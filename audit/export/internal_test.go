package export

import (
	"context"
	"maps"
)

// Bounds are those that a bundle is checked within. What is not there is as it always is.
type Bounds struct {
	Directory, Policies int64
	Named, Compared     int
	Files               map[string]int
	Size                map[string]int64
}

// CheckBundleWithin is [CheckBundle] with other bounds.
func CheckBundleWithin(ctx context.Context, path, key string, with Bounds, anchors ...[]byte) (BundleReport, error) {
	b := limits()
	maps.Copy(b.files, with.Files)
	maps.Copy(b.size, with.Size)
	for to, n := range map[*int64]int64{&b.directory: with.Directory, &b.policies: with.Policies} {
		if n > 0 {
			*to = n
		}
	}
	for to, n := range map[*int]int{&b.named: with.Named, &b.compared: with.Compared} {
		if n != 0 {
			*to = max(n, 0)
		}
	}
	return checkBundle(ctx, path, key, b, anchors)
}

// MaxNamed is how many runs of a bundle are looked for by name.
const MaxNamed = maxNamed
