package verify_test

import (
	"errors"
	"testing"

	"sallyport/audit/verify"
)

// A log is gigabytes: ^C ends its check, wherever it is, and nothing is said of the log.
func TestVerifyIsStopped(t *testing.T) {
	for name, f := range map[string]*fixture{"plain": newFixture(t, 200), "packed": newKeptFixture(t, 200)} {
		asked := 0
		never := verify.Options{Stop: func() bool { asked++; return false }}
		if _, err := verify.Verify(f.dir, f.key, never); err != nil || asked == 0 {
			t.Fatalf("%s: Verify = %v, asked %d times whether to stop", name, err, asked)
		}
		if _, err := verify.Prove(f.dir, f.key, "150", never); err != nil {
			t.Fatalf("%s: Prove = %v", name, err)
		}
		all := asked
		for at := range all {
			asked = 0
			opts := verify.Options{Stop: func() bool { asked++; return asked > at }}
			var bad *verify.Problem
			_, err := verify.Prove(f.dir, f.key, "150", opts)
			if asked > at && (!errors.Is(err, verify.ErrStopped) || errors.As(err, &bad)) {
				t.Errorf("%s: Prove, stopped at %d of %d = %v, want ErrStopped", name, at, all, err)
			}
		}
	}
}
