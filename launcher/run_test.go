package launcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/launcher"
	"sallyport/launcher/guest"
	"sallyport/launcher/nerdctl"
)

// isolated runs a test under each isolation.
func isolated(t *testing.T, f func(t *testing.T, s func(argv ...string) launcher.Spec)) {
	for _, isolation := range []launcher.Isolation{launcher.Container, launcher.Hardened} {
		t.Run(string(isolation), func(t *testing.T) {
			f(t, func(argv ...string) launcher.Spec {
				s := spec(argv...)
				s.Isolation = isolation
				return s
			})
		})
	}
}

func TestOutcome(t *testing.T) {
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		with := func(s launcher.Spec, l launcher.Limits) launcher.Spec { s.Limits = l; return s }
		tests := []struct {
			name  string
			spec  launcher.Spec
			cause launcher.Cause
			exit  int
			text  string // part of the cause in words
		}{
			{"no such program", spec("nowhere"), launcher.NotStarted, 127, "exec nowhere: file does not exist"},
			{"not a program", spec("/etc/passwd"), launcher.NotStarted, 126, "permission denied"},
			{"true", spec("true"), launcher.Exited, 0, "ended with status 0"},
			{"false", spec("false"), launcher.Exited, 1, "ended with status 1"},
			{"status", spec("sh", "-c", "exit 42"), launcher.Exited, 42, "ended with status 42"},
			{"signal", spec("sh", "-c", "kill -USR1 $$"), launcher.Signaled, 138, "ended by signal SIGUSR1"},
			{"options are the command's", spec("echo", "--privileged", "-v", "/:/host"), launcher.Exited, 0, ""},
			{"output", with(spec("yes"), launcher.Limits{Output: 100000}), launcher.OutputLimit, 137, "killed for output: it may write 100000 octets"},
			{
				"memory", with(spec("python3", "-c", "x = bytearray(400 << 20)\nprint(len(x))"), launcher.Limits{Memory: 128 << 20}),
				launcher.OutOfMemory, 137, "out of memory: it may use 128 MiB",
			},
			{"children left behind", spec("sh", "-c", "setsid sleep 600 & (sleep 600 &) ; exit 3"), launcher.Exited, 3, ""},
			{"zombies", spec("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (true &) ; done; exit 0"), launcher.Exited, 0, ""},
		}
		for i, test := range tests {
			if test.spec.Isolation == launcher.Hardened && i%2 == 1 && test.cause == launcher.Exited {
				continue // the guest's own tests have them all; here it is about the runtime
			}
			t.Run(test.name, func(t *testing.T) {
				res := must(t, test.spec)
				exit := res.Exit
				if test.cause == launcher.OutOfMemory && exit == 125 {
					exit = 137 // gVisor's kernel dies with the sandbox
				}
				if res.Cause != test.cause || exit != test.exit || !strings.Contains(res.Text, test.text) {
					t.Errorf("%s, %d, %q; want %s, %d, %q", res.Cause, res.Exit, res.Text, test.cause, test.exit, test.text)
				}
				if res.Truncated != (test.cause == launcher.OutputLimit) {
					t.Errorf("Truncated = %v", res.Truncated)
				}
				if test.cause == launcher.Exited && (res.Usage.PeakMemory == 0 || res.Usage.CPU == 0 || res.Duration <= 0) {
					t.Errorf("usage %+v in %v", res.Usage, res.Duration)
				}
			})
		}
	})
}

// Work that is deaf to SIGTERM is killed a while after its time is up. A shell that had no
// time to become deaf, on a busy machine, gets more of it.
func TestTimeIsUp(t *testing.T) {
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		s := spec("sh", "-c", "trap '' TERM; echo deaf; sleep 600")
		s.Limits.Time = 500 * time.Millisecond
		res := must(t, s)
		for text(res, "stdout") == "" && s.Limits.Time < time.Minute {
			s.Limits.Time *= 2
			res = must(t, s)
		}
		if want := fmt.Sprint("timed out: it may take ", s.Limits.Time); res.Cause != launcher.TimedOut || res.Exit != 137 || !strings.Contains(res.Text, want) {
			t.Errorf("%s, %d, %q; want %s, 137, %q", res.Cause, res.Exit, res.Text, launcher.TimedOut, want)
		}
	})
}

// The sandbox writes to memory only, and no more than it may.
func TestDiskIsBounded(t *testing.T) {
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		s := spec("sh", "-c", "for d in /tmp /workspace; do head -c 10000000 /dev/zero > $d/x && head -c 30000000 /dev/zero > $d/x || du -sm $d | cut -f1; done 2>/dev/null")
		s.Limits = launcher.Limits{Tmp: 20 << 20, Workspace: 20 << 20}
		if res := must(t, s); text(res, "stdout") != "20\n20\n" {
			t.Errorf("%q, %s", text(res, "stdout"), res.Text)
		}
	})
}

// What is kept of a flood is bounded by more than its octets: a million of empty
// lines is a megabyte there and a hundred here.
func TestFloodOfLines(t *testing.T) {
	var streamed int
	s := spec("sh", "-c", "yes '' | head -c 1000000; echo end >&2")
	s.Stdout = writer(func(p []byte) { streamed += len(p) })
	res := must(t, s)
	if res.Cause != launcher.Exited || !res.Truncated || len(res.Output) != 50000 || streamed != 1000000 {
		t.Errorf("%s, truncated %v, %d lines, %d octets", res.Text, res.Truncated, len(res.Output), streamed)
	}
}

// The limit on processes is the container's: under gVisor its own kernel's
// threads count, and the work's processes do not.
func TestForkBomb(t *testing.T) {
	s := spec("python3", "-c", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass")
	s.Limits = launcher.Limits{PIDs: 64, Time: 2 * time.Second}
	res := must(t, s)
	for res.Usage.PIDsHit == 0 && s.Limits.Time < time.Minute { // on a busy machine Python has hardly begun by then
		s.Limits.Time *= 2
		res = must(t, s)
	}
	if res.Cause != launcher.TimedOut || res.Usage.PeakPIDs != 64 || res.Usage.PIDsHit == 0 ||
		!strings.Contains(res.Text, "it may have 64 processes and tried to make more") {
		t.Errorf("%s, %q, %+v", res.Cause, res.Text, res.Usage)
	}
	s.Isolation = launcher.Hardened
	s.Limits.PIDs = 256
	if res := must(t, s); res.Cause != launcher.TimedOut && res.Cause != launcher.Lost && res.Cause != launcher.OutOfMemory {
		t.Errorf("hardened: %s, %q, %+v", res.Cause, res.Text, res.Usage)
	}
}

// However late a start or a line is heard, and whatever the guest says of its
// clock, a line is between the start and the moment in which it was heard.
func TestLineTimes(t *testing.T) {
	const ms = time.Millisecond
	started := time.Now()
	c := launcher.NewClock(started, 10*ms) // sent 150 ms before it was heard
	for _, l := range []struct{ at, heard, want time.Duration }{
		{20 * ms, 5 * ms, 5 * ms}, // by the start alone it would be at 10
		{30 * ms, 40 * ms, 15 * ms},
		{200 * ms, 41 * ms, 41 * ms},
		{250 * ms, 300 * ms, 91 * ms},
		{math.MaxInt64, 310 * ms, 310 * ms},
		{math.MaxInt64, 320 * ms, 310 * ms},
	} {
		if got := c.Sent(l.at, started.Add(l.heard)).Sub(started); got != l.want {
			t.Errorf("sent at %v, heard after %v: after %v, want %v", l.at, l.heard, got, l.want)
		}
	}
	if got := c.Now(started.Add(330 * ms)); !got.Equal(started.Add(330 * ms)) {
		t.Errorf("the end is at %v", got)
	}
}

func TestOutput(t *testing.T) {
	// Each line waits until the one before it was heard: the streams are two.
	s := spec("sh", "-c", "echo one; read x; echo two $x >&2; read y; printf three$y; read z; head -c 40000 /dev/zero | tr '\\0' x >&2")
	in, w := io.Pipe()
	s.Stdin = in
	var stdout, stderr bytes.Buffer
	s.Stdout = writer(func(p []byte) {
		stdout.Write(p)
		switch stdout.String() {
		case "one\n":
			go io.WriteString(w, "A\n")
		case "one\nthreeB":
			go func() { _, _ = io.WriteString(w, "C\n"); w.Close() }()
		}
	})
	s.Stderr = writer(func(p []byte) {
		stderr.Write(p)
		if stderr.String() == "two A\n" {
			go io.WriteString(w, "B\n")
		}
	})
	res := must(t, s)
	if stdout.String() != "one\nthreeB" || stderr.String() != "two A\n"+strings.Repeat("x", 40000) {
		t.Errorf("streamed %q and %.100q", &stdout, &stderr)
	}
	type line struct {
		Stream string
		Size   int
		Open   bool
	}
	var got []line
	var last time.Time
	for _, l := range res.Output {
		got = append(got, line{l.Stream, len(l.Text), l.Open})
		if l.Time.Before(last) || l.Time.Before(res.Started) || l.Time.After(res.Ended) {
			t.Errorf("line at %v, run from %v to %v", l.Time, res.Started, res.Ended)
		}
		last = l.Time
	}
	want := []line{{"stdout", 3, false}, {"stderr", 5, false}, {"stdout", 6, true}, {"stderr", 16384, true}, {"stderr", 16384, true}, {"stderr", 7232, true}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// What a sandbox is, seen from inside. Each line of the script says something
// that must not be so; the end says that the script came to its end.
const inside = `
bad() { echo "BAD: $*"; }
[ "$(id -u):$(id -g)" = 1000:1000 ] || bad "user $(id)"
for c in CapInh CapPrm CapEff CapBnd CapAmb; do
  grep -q "^$c:[[:space:]]*0*$" /proc/self/status || bad "$(grep $c /proc/self/status)"
done
grep -q '^NoNewPrivs:[[:space:]]*1' /proc/self/status || bad "new privileges"
[ "$KIND" = hardened ] || grep -q '^Seccomp:[[:space:]]*2' /proc/self/status || bad "no seccomp"
for p in / /etc /usr /usr/bin /etc/sallyport /.sallyport /var /root /etc/resolv.conf /etc/hosts /etc/ssl/certs; do
  if touch $p/x 2>/dev/null || [ -w $p ]; then bad "can write $p"; fi
done
for p in /etc/sallyport/ca.crt /etc/sallyport/ca-bundle.crt /etc/ssl/certs/ca-certificates.crt /.sallyport/guest; do
  (echo x >> $p) 2>/dev/null && bad "can write $p"
done
for p in /tmp /workspace $HOME; do
  printf '#!/bin/sh\nexit 7\n' > $p/program && chmod +x $p/program && $p/program
  [ $? = 7 ] || bad "cannot write or run in $p"
done
[ "$(ulimit -n)" = 1024 ] || bad "open files $(ulimit -n)"
[ "$(ulimit -c)" = 0 ] || bad "core files $(ulimit -c)"
[ -n "$HOST_ONLY_VARIABLE" ] && bad "the host's environment"
# DN-16: the gateway and nobody else, no search list of the host's.
[ "$(cat /etc/resolv.conf)" = "nameserver $GATEWAY" ] || bad "resolv.conf: $(cat /etc/resolv.conf)"
grep -q "localhost" /etc/hosts || bad "hosts: $(cat /etc/hosts)"
[ "$(hostname)" = "$SALLYPORT_CELL" ] || bad "host name $(hostname)"
[ "$(date +%Z)" = UTC ] || bad "time zone"
[ "$(locale charmap 2>/dev/null || echo UTF-8)" = UTF-8 ] || bad "locale"
[ "$(git config --get-all url.https://github.com/.insteadOf | wc -l)" = 2 ] || bad "git: $(git config -l)"
unshare -r true 2>/dev/null && [ "$KIND" != hardened ] && bad "user namespaces"
mount -t tmpfs none /tmp 2>/dev/null && bad "can mount"
for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /sys/kernel/uevent_helper; do
  (echo x > $f) 2>/dev/null && bad "can write $f"
done
[ -e /dev/kmsg ] || [ -e /dev/mem ] || [ -e /dev/kvm ] && bad "devices: $(ls /dev)"
ls / | grep -qx host && bad "host's files"
grep -v -e ' / ' -e ' /proc' -e ' /dev' -e ' /sys' -e ' /etc/\(hosts\|hostname\|resolv.conf\|sallyport\) ' -e ' /tmp ' -e ' /workspace ' \
  -e ' /etc/ssl/certs/ca-certificates.crt ' -e ' /.sallyport/guest ' /proc/self/mountinfo | sed 's/^/BAD: mount /'
cat < /dev/tcp/$GATEWAY/3128 2>/dev/null || bad "cannot reach the gateway"
(echo > /dev/tcp/127.0.0.1/3128) 2>/dev/null && bad "loopback is shared"
tail -n 30 /etc/ssl/certs/ca-certificates.crt | grep -q "$(sed -n 2p /etc/sallyport/ca.crt)" || bad "the system's bundle lacks the CA"
grep -q "$(sed -n 2p /etc/sallyport/ca.crt)" $SSL_CERT_FILE || bad "the bundle lacks the CA"
[ $(grep -c BEGIN $SSL_CERT_FILE) -gt 50 ] || bad "the bundle lacks the image's own"
[ -s /etc/sallyport/README.md ] || bad "no README"
[ "$API_KEY" = "placeholder-$SALLYPORT_CELL" ] || bad "placeholder"
[ "$GREETING" = "hello, world = 1" ] || bad "variable"
[ -z "$ALL_PROXY$all_proxy$SSL_CERT_DIR" ] || bad "hidden variables"
python3 - <<'END' || bad "the bundle or the key store is not as it should be"
import ssl
assert len(ssl.create_default_context().get_ca_certs()) > 50
import hashlib, struct
d = open("/etc/sallyport/cacerts.jks", "rb").read()
magic, version, count = struct.unpack(">III", d[:12])
assert magic == 0xfeedfeed and version == 2 and count > 50
assert hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + d[:-20]).digest() == d[-20:]
END
echo end`

func TestInside(t *testing.T) {
	t.Setenv("HOST_ONLY_VARIABLE", "secret")
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		s := spec("bash", "-c", "GATEWAY=$(echo $HTTP_PROXY | sed 's,http://,,; s,:3128,,'); "+inside)
		s.Env = []string{"GREETING=hello, world = 1", "KIND=" + string(s.Isolation)}
		s.Credentials = []string{"test-key"}
		res := must(t, s)
		if got := text(res, "stdout"); got != "the gateway\nend\n" {
			t.Errorf("inside: %s%s%s", got, text(res, "stderr"), res.Text)
		}
	})
}

// The work shares a user with the guest, and gets at nothing of it: no descriptor
// to write frames to, no memory to read the spec or change the code in.
func TestGuestIsOutOfReach(t *testing.T) {
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		s := spec("python3", "-c", `
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def hole(what, f):
    try:
        r = f()
    except OSError:
        return
    if r is None or r >= 0:
        print("hole:", what)
for i in range(32):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        hole(f"fd {i}", lambda: os.open(f"/proc/1/fd/{i}", flags | os.O_NONBLOCK))
for name in ("mem", "environ", "maps", "auxv"):
    hole(name, lambda: len(os.read(os.open("/proc/1/" + name, os.O_RDONLY), 10)))
for name in ("cwd", "root", "exe"):
    hole(name, lambda: len(os.readlink("/proc/1/" + name)))
pidfd = libc.syscall(434, 1, 0)
hole("pidfd_getfd", lambda: libc.syscall(438, pidfd, 1, 0))
hole("PTRACE_ATTACH", lambda: libc.ptrace(16, 1, 0, 0))
class Vec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
buf = ctypes.create_string_buffer(16)
ours, theirs = Vec(ctypes.addressof(buf), 16), Vec(0x400000, 16)
hole("process_vm_readv", lambda: libc.process_vm_readv(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0))
hole("process_vm_writev", lambda: libc.process_vm_writev(1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0))
for s in range(1, 32):
    # gVisor lets a process kill its init, which ends the sandbox: nobody's loss.
    if s not in (signal.SIGTERM, signal.SIGINT) and (s not in (signal.SIGKILL, signal.SIGSTOP) or os.environ["KIND"] != "hardened"):
        os.kill(1, s)
print("end")`)
		s.Env = []string{"KIND=" + string(s.Isolation)}
		res := must(t, s)
		if got := text(res, "stdout"); got != "end\n" || res.Exit != 0 {
			t.Errorf("%s%s%s", got, text(res, "stderr"), res.Text)
		}
	})
}

// The environment is all of what clients need (sandbox-view 1.3) and nothing of
// the host's.
func TestEnvironment(t *testing.T) {
	res := must(t, spec("env", "-0"))
	got := map[string]string{}
	for kv := range strings.SplitSeq(strings.ReplaceAll(text(res, "stdout"), "\n", ""), "\x00") {
		if name, value, ok := strings.Cut(kv, "="); ok {
			got[name] = value
		}
	}
	proxy := got["HTTP_PROXY"]
	addr, err := netip.ParseAddrPort(strings.TrimPrefix(proxy, "http://"))
	if err != nil || !netip.MustParsePrefix("10.213.0.0/16").Contains(addr.Addr()) || addr.Port() != 3128 {
		t.Errorf("HTTP_PROXY=%q", proxy)
	}
	const bundle, ca, direct = "/etc/sallyport/ca-bundle.crt", "/etc/sallyport/ca.crt", "localhost,127.0.0.1,::1"
	host := addr.Addr().String()
	want := map[string]string{
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy, "NO_PROXY": direct, "no_proxy": direct,
		"grpc_proxy": proxy, "YARN_HTTP_PROXY": proxy, "YARN_HTTPS_PROXY": proxy, "NODE_USE_ENV_PROXY": "1", "NODE_USE_SYSTEM_CA": "1",
		"NODE_EXTRA_CA_CERTS": ca, "SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "CURL_CA_BUNDLE": bundle, "GIT_SSL_CAINFO": bundle,
		"PIP_CERT": bundle, "AWS_CA_BUNDLE": bundle, "CARGO_HTTP_CAINFO": bundle, "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": bundle,
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": bundle, "YARN_HTTPS_CA_FILE_PATH": bundle, "DENO_CERT": ca, "DENO_TLS_CA_STORE": "system,mozilla",
		"UV_SYSTEM_CERTS": "1", "CODEX_CA_CERTIFICATE": bundle, "AWS_EC2_METADATA_DISABLED": "true", "CHECKPOINT_DISABLE": "1",
		"JAVA_TOOL_OPTIONS": "-Dhttp.proxyHost=" + host + " -Dhttp.proxyPort=3128 -Dhttps.proxyHost=" + host + " -Dhttps.proxyPort=3128" +
			" -Djavax.net.ssl.trustStore=/etc/sallyport/cacerts.jks -Djavax.net.ssl.trustStoreType=JKS",
		"GIT_CONFIG_COUNT": "3", "GIT_CONFIG_KEY_0": "url.https://github.com/.insteadOf", "GIT_CONFIG_VALUE_0": "git@github.com:",
		"GIT_CONFIG_KEY_1": "url.https://github.com/.insteadOf", "GIT_CONFIG_VALUE_1": "ssh://git@github.com/",
		"GIT_CONFIG_KEY_2": "http.version", "GIT_CONFIG_VALUE_2": "HTTP/1.1",
		"HOME": "/tmp/home", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONUNBUFFERED": "1",
		"SALLYPORT_CELL": res.Cell, "SALLYPORT_RUN": res.Run, "HOSTNAME": res.Cell, "PATH": got["PATH"],
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
}

func TestFiles(t *testing.T) {
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		in, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
		for name, text := range map[string]string{"data.txt": "data", "lib/helper.py": "ANSWER = 42\n"} {
			write(t, filepath.Join(in, name), text)
		}
		s := spec("argument")
		s.Workspace, s.Export = in, out
		s.Code = &launcher.Code{Name: "job.py", Data: []byte(`
import os, sys
from lib import helper
os.makedirs("result")
open("result/answer", "w").write(f"{helper.ANSWER} {sys.argv[1]} {open('data.txt').read()}")
os.symlink("/etc/passwd", "link")
os.symlink("..", "result/up")
os.mkfifo("pipe")
os.chmod("result/answer", 0o6777)
open("\x1b[2J", "w")
os.remove("data.txt")
`)}
		res := must(t, s)
		if res.Cause != launcher.Exited || res.Exit != 0 || res.Export != out {
			t.Fatalf("%s %s %s", res.Text, text(res, "stderr"), res.Export)
		}
		var got []string
		err := filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
			info, statErr := d.Info()
			if err := errors.Join(err, statErr); err != nil {
				return err
			}
			got = append(got, strings.TrimPrefix(path, out)+" "+info.Mode().String())
			return nil
		})
		got = slices.DeleteFunc(got, func(s string) bool { return strings.Contains(s, "__pycache__") })
		want := []string{" drwxr-xr-x", "/job.py -rw-r--r--", "/lib drwxr-xr-x", "/lib/helper.py -rw-r--r--", "/result drwxr-xr-x", "/result/answer -rwxr-xr-x"}
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("exported (-want +got):\n%s%v", d, err)
		}
		data, _ := os.ReadFile(filepath.Join(out, "result/answer"))
		i := slices.IndexFunc(res.Files, func(f guest.File) bool { return f.Path == "result/answer" })
		if string(data) != "42 argument data" || i < 0 || "sha256:"+res.Files[i].SHA256 != digest(data) || res.Files[i].Size != int64(len(data)) {
			t.Errorf("answer %q, %+v", data, res.Files)
		}
		if len(res.Skipped) != 4 {
			t.Errorf("skipped %q", res.Skipped)
		}
	})
}

// What comes out must fit, and comes whole or not at all.
func TestExportIsBounded(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	s := spec("sh", "-c", "for i in $(seq 21000); do echo > f$i; done")
	s.Export = out
	res := must(t, s)
	if res.Exit != 0 || res.Export != "" || !strings.Contains(res.Text, "nothing was exported: more files than allowed") {
		t.Errorf("%q %q", res.Text, res.Export)
	}
	if _, err := os.Lstat(out); !errors.Is(err, os.ErrNotExist) {
		t.Error("something was exported")
	}
}

func TestRecords(t *testing.T) {
	shared.gateway.reset()
	s := spec("sh", "-c", "exit 4")
	s.Env = []string{"SETTING=value of it"}
	res := must(t, s)
	var got []string
	for _, r := range shared.gateway.recorded() {
		got = append(got, string(r.Kind))
		if r.Run != res.Run || r.Cell != res.Cell || r.Policy != s.Policy.Digest {
			t.Errorf("record of %s, %s, %s", r.Run, r.Cell, r.Policy)
		}
		if bytes.Contains(r.Data, []byte("value of it")) || bytes.Contains(r.Data, []byte("exit 4")) {
			t.Errorf("a value is in the log: %s", r.Data)
		}
	}
	if d := cmp.Diff([]string{"run.start", "run.end"}, got); d != "" {
		t.Fatalf("records (-want +got):\n%s", d)
	}
	var m launcher.Manifest
	var e launcher.Ending
	records := shared.gateway.recorded()
	if err := errors.Join(json.Unmarshal(records[0].Data, &m), json.Unmarshal(records[1].Data, &e)); err != nil {
		t.Fatal(err)
	}
	if m.ImageDigest != res.Digest || m.Runtime != "runc" || m.User != "1000:1000" || m.Program != "sh" ||
		!slices.Contains(m.Env, "SETTING") || m.Limits.PIDs != 256 || m.Asker.User != "tester" || len(m.Mounts) != 5 {
		t.Errorf("manifest %+v", m)
	}
	if e.Exit != 4 || e.Cause != launcher.Exited || !e.Destroyed || e.Usage.PeakMemory == 0 {
		t.Errorf("ending %+v", e)
	}
	if d := cmp.Diff([]string{records[0].ID, records[1].ID}, res.Records); d != "" {
		t.Errorf("ids (-log +result):\n%s", d)
	}
}

func TestDenialsAreTold(t *testing.T) {
	l, err := shared.launcher(func(step string) {
		if step == launcher.StepSandbox {
			shared.gateway.mu.Lock()
			shared.gateway.denials = []launcher.Denial{{Record: "1", Reason: "host_not_allowed"}, {Record: "2", Reason: "path_not_allowed"}}
			shared.gateway.mu.Unlock()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	shared.gateway.reset()
	res, err := l.Run(t.Context(), spec("false"))
	const want = "ended with status 1; 2 requests were denied by policy (host_not_allowed, path_not_allowed)"
	if err != nil || res.Denied != 2 || res.Text != want {
		t.Errorf("%q, %v", res.Text, err)
	}
}

// Packets that go for another way out are counted and recorded.
func TestBypassIsRecorded(t *testing.T) {
	s := spec("python3", "-c", "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor i in range(3): s.sendto(b'x', ('192.0.2.1', 9))")
	res := must(t, s)
	i := slices.IndexFunc(shared.gateway.recorded(), func(r audit.Record) bool { return r.Kind == audit.Bypass })
	if res.Bypass.UDP != 3 || i < 0 {
		t.Errorf("bypass %+v, recorded %v", res.Bypass, i >= 0)
	}
}

func TestSeveralAtOnce(t *testing.T) {
	shared.gateway.reset()
	before := snapshot(t)
	l, err := shared.launcher(nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	cells := make([]string, 4)
	for i := range cells {
		wg.Go(func() {
			res, err := l.Run(t.Context(), spec("sh", "-c", "echo $HTTP_PROXY; hostname -I"))
			if err != nil || res.Exit != 0 {
				t.Errorf("%v, %s", err, res.Text)
			}
			cells[i] = text(res, "stdout")
		})
	}
	wg.Wait()
	slices.Sort(cells)
	if len(slices.Compact(cells)) != 4 {
		t.Errorf("addresses %q", cells)
	}
	same(t, before)
}

func TestRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "x")
	full := filepath.Dir(file)
	tests := []struct {
		name string
		mend func(s *launcher.Spec)
		want string
	}{
		{"no image", func(s *launcher.Spec) { s.Image = "" }, "an image is required"},
		{"image missing", func(s *launcher.Spec) { s.Image = "nowhere/none:1" }, "sallyport/sandbox:latest; add one from an archive with `sallyport image load FILE`"},
		{"CT-12: image is an option", func(s *launcher.Spec) { s.Image = "--privileged" }, "not a name"},
		{"CT-12: image is a mount", func(s *launcher.Spec) { s.Image = "-v/:/h" }, "not a name"},
		{"no isolation", func(s *launcher.Spec) { s.Isolation = "" }, `isolation ""`},
		{"no policy", func(s *launcher.Spec) { s.Policy = launcher.Policy{} }, "a policy with its digest is required"},
		{"digest is a path", func(s *launcher.Spec) { s.Policy.Digest = "sha256:../../x" }, "a policy with its digest is required"},
		{"protected variable", func(s *launcher.Spec) { s.Env = []string{"HTTPS_PROXY=http://x"} }, "variable HTTPS_PROXY: it is set by the launcher"},
		{"hidden variable", func(s *launcher.Spec) { s.Env = []string{"ALL_PROXY=socks5://x"} }, "variable ALL_PROXY: it is set by the launcher"},
		{"git configuration", func(s *launcher.Spec) { s.Env = []string{"GIT_CONFIG_COUNT=9"} }, "variable GIT_CONFIG_COUNT"},
		{"not a variable", func(s *launcher.Spec) { s.Env = []string{"A B=c"} }, "want NAME=value"},
		{"variable twice", func(s *launcher.Spec) { s.Env = []string{"A=1", "A=2"} }, "a variable is given twice"},
		{"too much memory", func(s *launcher.Spec) { s.Limits.Memory = -1 }, "limit of memory"},
		{"no time", func(s *launcher.Spec) { s.Limits.Time = time.Nanosecond }, "limit of time"},
		{"code of a strange kind", func(s *launcher.Spec) { s.Code = &launcher.Code{Name: "x.exe"} }, "ends in .py, .sh or .js"},
		{"code elsewhere", func(s *launcher.Spec) { s.Code = &launcher.Code{Name: "../x.py"} }, "want a plain name"},
		{"workspace missing", func(s *launcher.Spec) { s.Workspace = "/nowhere" }, "workspace: stat /nowhere"},
		{"workspace is a file", func(s *launcher.Spec) { s.Workspace = file }, "is not a directory"},
		{"export over files", func(s *launcher.Spec) { s.Export = full }, "is not empty"},
		{"export nowhere", func(s *launcher.Spec) { s.Export = "/nowhere/there" }, "export: "},
		{"zero octet", func(s *launcher.Spec) { s.Argv = []string{"a\x00b"} }, "zero octet"},
		{"placeholder over a variable", func(s *launcher.Spec) { s.Credentials = []string{"key"}; s.Env = []string{"API_KEY=mine"} }, `variable API_KEY: the policy's credential "key" sets it`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := snapshot(t)
			s := spec("true")
			test.mend(&s)
			res, err := run(t, s)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Run = %v, want %q", err, test.want)
			}
			if !res.Started.IsZero() {
				t.Error("it was started")
			}
			same(t, before)
		})
	}
}

func TestSecretsInEnvironment(t *testing.T) {
	word := func(n int) string { return strings.Repeat("a1B2", n/4+1)[:n] }
	refused := []string{
		"AKIA" + strings.ToUpper(word(16)), "ghp_" + word(36), "github_pat_" + word(40), "glpat-" + word(20), "xoxb-" + word(20), "sk-" + word(40),
		"sk-ant-api03-" + word(40), "sk_live_" + word(24), "AIza" + word(35), "npm_" + word(36), "-----BEGIN RSA PRIVATE KEY-----\nx", "-----BEGIN PRIVATE KEY-----",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc", "postgres://user:pass@db.example/x", "prefix ghp_" + word(36) + " suffix",
	}
	for _, value := range refused {
		s := spec("true")
		s.Env = []string{"SETTING=" + value}
		_, err := run(t, s)
		if err == nil || !strings.Contains(err.Error(), "make it a credential") || strings.Contains(err.Error(), value) {
			t.Errorf("%q: Run = %v", value, err)
		}
	}
	s := spec("true")
	for i, value := range []string{"", "1", "https://example.com/path?x=1", "task-list-with-a-long-name-in-it", "skip-this-one", "user@example.com", "-----BEGIN CERTIFICATE-----"} {
		s.Env = append(s.Env, "V"+string(rune('A'+i))+"="+value)
	}
	if res := must(t, s); res.Exit != 0 {
		t.Errorf("harmless values: %s", res.Text)
	}
}

// Whatever the daemons do not do, before or after the effect: no run, nothing left.
func TestDaemonsFail(t *testing.T) {
	for _, op := range []string{"status", "grants", "attach", "record run.start"} {
		for _, lost := range []bool{false, true} {
			t.Run(op+map[bool]string{true: ", answer lost"}[lost], func(t *testing.T) {
				before := snapshot(t)
				shared.gateway.reset()
				shared.gateway.fail[op], shared.gateway.lost = errors.New("out of order"), lost
				l, err := shared.launcher(nil)
				if err != nil {
					t.Fatal(err)
				}
				s := spec("true")
				s.Credentials = []string{"key"}
				res, err := l.Run(t.Context(), s)
				if err == nil || !strings.Contains(err.Error(), "out of order") || !res.Started.IsZero() {
					t.Errorf("Run = %v, started %v", err, res.Started)
				}
				same(t, before)
			})
		}
	}
}

// An end that cannot be recorded is recorded later.
func TestEndIsRecordedLater(t *testing.T) {
	before := snapshot(t)
	shared.gateway.reset()
	shared.gateway.fail["record run.end"] = errors.New("out of order")
	l, err := shared.launcher(nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := l.Run(t.Context(), spec("true"))
	if err == nil || res.Exit != 0 || !res.Destroyed {
		t.Errorf("Run = %v, %+v", err, res)
	}
	shared.gateway.mu.Lock()
	shared.gateway.fail = nil
	shared.gateway.mu.Unlock()
	if _, err := l.Reconcile(t.Context()); err != nil {
		t.Error(err)
	}
	records := shared.gateway.recorded()
	if last := records[len(records)-1]; last.Kind != audit.RunEnd || last.Run != res.Run {
		t.Errorf("last record is %s of %s", last.Kind, last.Run)
	}
	same(t, before)
}

// The engine and the gateway have to be there; the error says what to do.
func TestNoEngine(t *testing.T) {
	e, err := nerdctl.New(nerdctl.Config{Instance: instance, RunDir: t.TempDir(), StateDir: t.TempDir(), Tools: shared.Tools})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Image(t.Context(), image); !errors.Is(err, nerdctl.ErrNoEngine) || !strings.Contains(err.Error(), "sallyport up") {
		t.Errorf("Image = %v", err)
	}
	if _, err := e.List(t.Context()); !errors.Is(err, nerdctl.ErrNoEngine) {
		t.Errorf("List = %v", err)
	}
}

func TestCancelled(t *testing.T) {
	isolated(t, func(t *testing.T, spec func(argv ...string) launcher.Spec) {
		before := snapshot(t)
		shared.gateway.reset()
		l, err := shared.launcher(nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var at time.Time
		s := spec("sh", "-c", "trap '' TERM INT HUP; echo ready; sleep 600")
		s.Stdout = writer(func([]byte) { at = time.Now(); cancel() })
		res, err := l.Run(ctx, s)
		if !errors.Is(err, context.Canceled) || res.Cause != launcher.Canceled || !res.Destroyed {
			t.Errorf("Run = %v, %s, %v", err, res.Cause, res.Destroyed)
		}
		if d := time.Since(at); d > 10*time.Second {
			t.Errorf("took %v to undo", d)
		}
		same(t, before)
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
