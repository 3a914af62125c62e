package launcher_test

import (
	"testing"

	"sallyport/launcher"
)

func TestRun(t *testing.T) {
	res := must(t, spec("echo", "hello"))
	if res.Cause != launcher.Exited || text(res, "stdout") != "hello\n" {
		t.Errorf("%+v", res)
	}
}
