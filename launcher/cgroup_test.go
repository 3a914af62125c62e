package launcher_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"sallyport/launcher"
)

// A group is removed while the last process in it ends by itself: between the kernel's
// refusal and a look at who is in it there is nobody left to kill.
func TestCgroupIsRemovedAsItsProcessEnds(t *testing.T) {
	top := "/sys/fs/cgroup/pids" // of version 1
	if _, err := os.Stat(top); errors.Is(err, fs.ErrNotExist) {
		top = "/sys/fs/cgroup"
	}
	group := instance + "-ends"
	for range 300 {
		if err := os.Mkdir(filepath.Join(top, group), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", "read x")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		err = os.WriteFile(filepath.Join(top, group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644)
		if err := errors.Join(err, in.Close()); err != nil {
			t.Fatal(err)
		}
		if err := launcher.RemoveCgroups(group); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed, or ended
	}
}
