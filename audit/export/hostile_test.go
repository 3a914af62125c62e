package export_test

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/export"
)

// member is a file of an archive, as it is said to be.
type member struct {
	zip.FileHeader
	data []byte
	raw  bool // data is what is in the archive, and the header is written as it is
}

// members are the files of a bundle, to be changed.
func members(t testing.TB, path string) map[string]*member {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	out := map[string]*member{}
	for _, f := range z.File {
		data, err := fs.ReadFile(z, f.Name)
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name] = &member{FileHeader: zip.FileHeader{Name: f.Name, Method: zip.Deflate}, data: data}
	}
	return out
}

// archive writes them.
func archive(t testing.TB, all map[string]*member) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.zip")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(f)
	for _, m := range all {
		create := w.CreateHeader
		if m.raw {
			create = w.CreateRaw
		}
		out, err := create(&m.FileHeader)
		if err == nil {
			_, err = out.Write(m.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// squeezed compresses data, followed by n zeros.
func squeezed(t testing.TB, data []byte, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(data)
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), zeros(t, n)...)
}

// zeros compresses n of them: nearly all is one piece of it, again and again.
func zeros(t testing.TB, n int64) []byte {
	t.Helper()
	const piece = 1 << 20
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(make([]byte, piece))
	}
	if err := errors.Join(err, w.Flush()); err != nil {
		t.Fatal(err)
	}
	out := bytes.Repeat(b.Bytes(), int(n/piece))
	b.Reset()
	w.Reset(&b)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return append(out, b.Bytes()...)
}

// bomb makes m hold n zeros more, and say that it holds says octets.
func bomb(t testing.TB, m *member, n int64, says uint64) {
	t.Helper()
	m.data, m.raw = squeezed(t, m.data, n), true
	m.UncompressedSize64, m.CompressedSize64 = says, uint64(len(m.data))
}

// TestHostileBundles: what nobody's export writes is refused with what is wrong, and
// costs no memory, and no time, to speak of.
func TestHostileBundles(t *testing.T) {
	path, key := bundled(t)
	const huge = 256 << 20 // whole pieces of zeros
	proof, policy := "", ""
	for name := range members(t, path) {
		switch {
		case strings.HasPrefix(name, "proofs/"):
			proof = max(proof, name)
		case strings.HasPrefix(name, "policies/"):
			policy = name
		}
	}
	for name, tt := range map[string]struct {
		change func(all map[string]*member)
		want   string // "" for a bundle that is good
	}{
		"the same again":           {change: func(map[string]*member) {}},
		"stored":                   {change: func(all map[string]*member) { all[proof].Method = zip.Store }},
		"with modes":               {change: func(all map[string]*member) { all[proof].SetMode(0o600) }},
		"with a directory":         {change: func(all map[string]*member) { add(all, "proofs/", fs.ModeDir|0o755) }},
		"a directory more":         {change: func(all map[string]*member) { add(all, "more/", fs.ModeDir|0o755) }, want: `"more/" is no file of a bundle`},
		"a directory that is none": {change: func(all map[string]*member) { add(all, "proofs/", fs.ModeSymlink|0o777) }, want: `"proofs/" is no file of a bundle`},
		"a file as a directory":    {change: func(all map[string]*member) { all["log.pub"].SetMode(fs.ModeDir | 0o755) }, want: `"log.pub" is not a regular file`},
		"a link":                   {change: func(all map[string]*member) { all["log.pub"].SetMode(fs.ModeSymlink | 0o777) }, want: `"log.pub" is not a regular file`},
		"a link among proofs":      {change: func(all map[string]*member) { all[proof].SetMode(fs.ModeSymlink | 0o777) }, want: "is not a regular file"},
		"a device":                 {change: func(all map[string]*member) { all["README.txt"].SetMode(fs.ModeDevice | 0o600) }, want: `"README.txt" is not a regular file`},
		"a pipe":                   {change: func(all map[string]*member) { all["checkpoints"].SetMode(fs.ModeNamedPipe | 0o600) }, want: `"checkpoints" is not a regular file`},
		"encrypted":                {change: func(all map[string]*member) { bomb(t, all["README.txt"], 0, 10); all["README.txt"].Flags = 1 }, want: `"README.txt" is encrypted`},
		"another method":           {change: func(all map[string]*member) { bomb(t, all[proof], 0, 10); all[proof].Method = 99 }, want: "unsupported compression"},
		"no octets": {change: func(all map[string]*member) {
			all[proof].raw, all[proof].data, all[proof].UncompressedSize64 = true, nil, 100
		}, want: "reading " + proof},
		"a README that is long":              {change: func(all map[string]*member) { all["README.txt"].data = make([]byte, 5<<20) }, want: `"README.txt" says that it holds 5242880 octets, and 4194304 is the most`},
		"a README that is longer than said":  {change: func(all map[string]*member) { bomb(t, all["README.txt"], huge, 100) }, want: "reading README.txt"},
		"a key that is long":                 {change: func(all map[string]*member) { all["log.pub"].data = make([]byte, 5<<10) }, want: `"log.pub" says that it holds`},
		"a proof that is long":               {change: func(all map[string]*member) { all[proof].data = make([]byte, 1<<20) }, want: "and 81920 is the most"},
		"a proof that is longer than said":   {change: func(all map[string]*member) { bomb(t, all[proof], huge, 1000) }, want: "reading " + proof},
		"a policy that is long":              {change: func(all map[string]*member) { bomb(t, all[policy], huge, huge) }, want: "octets, and 67108864 is the most"},
		"a policy that is longer than said":  {change: func(all map[string]*member) { bomb(t, all[policy], huge, 100) }, want: "reading policies/"},
		"a manifest that is long":            {change: func(all map[string]*member) { bomb(t, all["runs/r2.json"], huge, huge) }, want: `"runs/r2.json" says that it holds`},
		"a manifest with zeros":              {change: func(all map[string]*member) { bomb(t, all["runs/r2.json"], 30<<20, 30<<20) }, want: `"runs/r2.json" is not what the records tell`},
		"an anchor that is long":             {change: func(all map[string]*member) { add(all, "anchors/000.proof", 0o600).data = make([]byte, 1<<20) }, want: `"anchors/000.proof" says that it holds`},
		"records, and zeros":                 {change: func(all map[string]*member) { m := all["records.jsonl"]; bomb(t, m, huge, huge+uint64(len(m.data))) }, want: "does not hold just the records that are proved"},
		"zeros for records":                  {change: func(all map[string]*member) { m := all["records.jsonl"]; m.data = nil; bomb(t, m, huge, huge) }, want: "does not hold just the records that are proved"},
		"records that are longer than said":  {change: func(all map[string]*member) { bomb(t, all["records.jsonl"], huge, 100) }, want: "reading records.jsonl"},
		"checkpoints, and zeros":             {change: func(all map[string]*member) { m := all["checkpoints"]; bomb(t, m, huge, huge+uint64(len(m.data))) }, want: "a checkpoint is too long"},
		"checkpoints that go on for ever":    {change: func(all map[string]*member) { m := all["checkpoints"]; m.data = append(m.data, m.data...) }, want: "stands after checkpoint"},
		"half a checkpoint more":             {change: func(all map[string]*member) { m := all["checkpoints"]; m.data = append(m.data, m.data[:50]...) }, want: "it ends within a checkpoint"},
		"anchors with a hole":                {change: func(all map[string]*member) { add(all, "anchors/001.proof", 0o600) }, want: `"anchors/000.proof" is missing`},
		"many names":                         {change: func(all map[string]*member) { many(all, 250, strings.Repeat("x", 60<<10)) }, want: "the list of its files is longer than that of any bundle"},
		"many files":                         {change: func(all map[string]*member) { many(all, 20_001, "proofs/") }, want: "proofs/ holds more than 20000 files"},
		"a policy that no record names":      {change: func(all map[string]*member) { add(all, "policies/"+strings.Repeat("0", 64)+".yaml", 0o600) }, want: "policies/ holds a policy that no record names"},
		"a run that no record tells of":      {change: func(all map[string]*member) { add(all, "runs/r3.json", 0o600) }, want: "runs/ tells of 2 runs, and the records of 1"},
		"a proof in the place of another":    {change: func(all map[string]*member) { add(all, "proofs/000000000900.proof", 0o600).data = all[proof].data }, want: `"proofs/000000000900.proof": it is the proof of record`},
		"a number that is spelled otherwise": {change: func(all map[string]*member) { add(all, "proofs/0000000000001.proof", 0o600) }, want: "is no file of a bundle"},
	} {
		t.Run(name, func(t *testing.T) {
			all := members(t, path)
			tt.change(all)
			file := archive(t, all)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := export.CheckBundle(t.Context(), file, key)
			runtime.ReadMemStats(&after)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("CheckBundle = %v, want %q", err, tt.want)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 48<<20 {
				t.Errorf("CheckBundle took %d octets of memory", took)
			}
		})
	}
}

func add(all map[string]*member, name string, mode fs.FileMode) *member {
	m := &member{FileHeader: zip.FileHeader{Name: name, Method: zip.Deflate}}
	m.SetMode(mode)
	all[name] = m
	return m
}

func many(all map[string]*member, n int, prefix string) {
	for i := range n {
		add(all, fmt.Sprintf("%s%012d.proof", prefix, 1000+i), 0o600)
	}
}

// TestBundlesWithOddNames: no name leads out of where a bundle is unzipped, and none
// is there twice.
func TestBundlesWithOddNames(t *testing.T) {
	path, key := bundled(t)
	same := func(_ string, data []byte) ([]byte, bool) { return data, true }
	for _, name := range []string{
		"../README.txt", "/README.txt", "./README.txt", "proofs/../README.txt", "proofs/../../x", "policies/..", "runs/../r2.json", "runs/./r2.json",
		"runs//r2.json", `..\README.txt`, `C:\README.txt`, "README.txt\x00", "readme.txt", "runs/r2.json/", "runs/r 2.json", "runs/.json", "runs/r2.json\n", "",
	} {
		_, err := export.CheckBundle(t.Context(), rezip(t, path, same, name), key)
		if want := fmt.Sprintf("%q is no file of a bundle", name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("CheckBundle = %v, want %s", err, want)
		}
	}
	for _, name := range []string{"README.txt", "records.jsonl", "runs/r2.json"} {
		_, err := export.CheckBundle(t.Context(), rezip(t, path, same, name), key)
		if want := fmt.Sprintf("%q is there twice", name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("CheckBundle = %v, want %s", err, want)
		}
	}
}

// TestBundlesThatWereCut: wherever it was.
func TestBundlesThatWereCut(t *testing.T) {
	path, key := bundled(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cut.zip")
	for n := 0; n < len(data); n += 1 + len(data)/200 {
		if err := os.WriteFile(file, data[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := export.CheckBundle(t.Context(), file, key); err == nil || !strings.Contains(err.Error(), "reading the bundle: it was cut, or is no ZIP archive") {
			t.Errorf("of %d octets: CheckBundle = %v", n, err)
		}
	}
}

// TestBundlesThatAreNoFiles: nobody waits for a pipe, or reads a device.
func TestBundlesThatAreNoFiles(t *testing.T) {
	_, key := bundled(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), "/dev/zero"} {
		if _, err := export.CheckBundle(t.Context(), path, key); err == nil || !strings.Contains(err.Error(), "it is not a regular file") {
			t.Errorf("%s: CheckBundle = %v", path, err)
		}
	}
}

// TestBoundsOfABundle: a bundle that is as large as it may be is good, and what is
// read through and not kept, the records and the checkpoints, may be larger than
// anything else.
func TestBoundsOfABundle(t *testing.T) {
	dir, key, anchor, _ := anchoredLog(t)
	anchored, err := bundleOf(t, dir, key, anchor)
	if err != nil {
		t.Fatal(err)
	}
	path, plain := bundled(t)
	for name, tt := range map[string]struct {
		path, key string
		fits      export.Bounds
		less      export.Bounds // of which one is smaller
		want      string
	}{
		"proofs":      {path, plain, files("proofs/", 17), files("proofs/", 16), "proofs/ holds more than 16 files"},
		"runs":        {path, plain, files("runs/", 1), files("runs/", 0), "runs/ holds more than 0 files"},
		"policies":    {path, plain, files("policies/", 1), files("policies/", 0), "policies/ holds more than 0 files"},
		"anchors":     {anchored, key, files("anchors/", 1), files("anchors/", 0), "anchors/ holds more than 0 files"},
		"README":      {path, plain, size(t, path, "README.txt", 0), size(t, path, "README.txt", 1), `"README.txt" says that it holds`},
		"key":         {path, plain, size(t, path, "log.pub", 0), size(t, path, "log.pub", 1), `"log.pub" says that it holds`},
		"a policy":    {path, plain, size(t, path, "policies/", 0), size(t, path, "policies/", 1), "says that it holds"},
		"a manifest":  {path, plain, size(t, path, "runs/", 0), size(t, path, "runs/", 1), `"runs/r2.json" says that it holds`},
		"a proof":     {path, plain, size(t, path, "proofs/", 0), size(t, path, "proofs/", 1), "says that it holds"},
		"an anchor":   {anchored, key, size(t, anchored, "anchors/", 0), size(t, anchored, "anchors/", 1), `"anchors/000.proof" says that it holds`},
		"all of them": {path, plain, export.Bounds{Policies: int64(len(policy))}, export.Bounds{Policies: int64(len(policy)) - 1}, "policies/ says that it holds 25 octets, and 24 is the most"},
		"names":       {path, plain, export.Bounds{Named: 71 + 19}, export.Bounds{Named: 71 + 18}, "the records name too many policies"},
		"comparisons": {anchored, key, export.Bounds{Compared: 1}, export.Bounds{Compared: -1}, "too many checkpoints to compare each with every anchor"},
		"directory":   {path, plain, export.Bounds{Directory: 16 << 10}, export.Bounds{Directory: 1 << 10}, "the list of its files is longer"},
	} {
		if r, err := export.CheckBundleWithin(t.Context(), tt.path, tt.key, tt.fits); err != nil || r.Records == 0 {
			t.Errorf("%s, as much as there may be: CheckBundle = %+v, %v", name, r, err)
		}
		if _, err := export.CheckBundleWithin(t.Context(), tt.path, tt.key, tt.less); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: CheckBundle = %v, want %q", name, err, tt.want)
		}
	}
}

func files(kind string, n int) export.Bounds {
	return export.Bounds{Files: map[string]int{kind: n}}
}

// size bounds the files of one kind to less than the largest.
func size(t *testing.T, path, kind string, less int) export.Bounds {
	t.Helper()
	largest := 0
	for name, m := range members(t, path) {
		if strings.HasPrefix(name, kind) {
			largest = max(largest, len(m.data))
		}
	}
	return export.Bounds{Size: map[string]int64{kind: int64(largest - less)}}
}

// TestCheckpointsOfABundleAreNotKept: bundles of before format 4 hold all of a log's,
// which may be gigabytes.
func TestCheckpointsOfABundleAreNotKept(t *testing.T) {
	base := t.TempDir()
	l, err := audit.Open(audit.Config{Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := l.Append(t.Context(), &audit.Record{Kind: audit.Refuse, Verdict: "deny"}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	key := l.Verifier()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	history, err := os.ReadFile(filepath.Join(base, "audit", "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	path, err := bundleOf(t, filepath.Join(base, "audit"), key)
	if err != nil {
		t.Fatal(err)
	}
	all := members(t, path)
	all["checkpoints"].data = history
	all["README.txt"].data = regexp.MustCompile(`lead to: [0-9]+`).ReplaceAll(all["README.txt"].data, fmt.Appendf(nil, "lead to: %d", bytes.Count(history, []byte("\n— "))))
	// None of what is kept may be as large.
	within := export.Bounds{Size: map[string]int64{}}
	for _, kind := range []string{"proofs/", "README.txt", "log.pub", "runs/", "policies/"} {
		within.Size[kind] = 8 << 10
	}
	if r, err := export.CheckBundleWithin(t.Context(), archive(t, all), key, within); err != nil || len(history) < 2*8<<10 {
		t.Errorf("CheckBundle = %+v, %v, with checkpoints of %d octets", r, err, len(history))
	}
}

func FuzzCheckBundle(f *testing.F) {
	path, key := bundled(f)
	data, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, at := range []int{3, 100, len(data) / 2, len(data) - 2000, len(data) - 10} {
		bad := bytes.Clone(data)
		bad[at] ^= 1
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "bundle.zip")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := export.CheckBundle(t.Context(), path, key); err == nil && r.Records != 17 {
			t.Errorf("a bundle of %d records is good", r.Records)
		}
	})
}
