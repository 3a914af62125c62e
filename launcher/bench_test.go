package launcher_test

import (
	"os/exec"
	"testing"

	"sallyport/launcher"
)

// What a run costs beside what the engine alone costs, for the same command of the
// same image: the ratio is what this package adds.
func BenchmarkCold(b *testing.B) {
	for _, isolation := range []launcher.Isolation{launcher.Container, launcher.Hardened} {
		b.Run("bare/"+string(isolation), func(b *testing.B) {
			args := []string{
				"--address", shared.RunDir + "/containerd.sock", "--namespace", instance, "--data-root", shared.StateDir + "/nerdctl",
				"--cgroup-manager", "cgroupfs", "run", "--cgroup-parent", "/", "--rm", "--pull", "never", "--network", "none",
			}
			if isolation == launcher.Hardened {
				args = append(args, "--runtime", shared.Tools.Runsc)
			}
			for b.Loop() {
				if out, err := exec.Command(shared.Tools.Nerdctl, append(args, image, "/bin/true")...).CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
		b.Run("sallyport/"+string(isolation), func(b *testing.B) {
			shared.gateway.reset()
			l, err := shared.launcher(nil)
			if err != nil {
				b.Fatal(err)
			}
			s := spec("/bin/true")
			s.Isolation = isolation
			var setUp, total float64
			for b.Loop() {
				res, err := l.Run(b.Context(), s)
				if err != nil || res.Exit != 0 {
					b.Fatalf("%v, %s", err, res.Text)
				}
				setUp += float64(res.SetUp.Milliseconds())
				total++
			}
			b.ReportMetric(setUp/total, "ms-to-start/op")
		})
	}
}
