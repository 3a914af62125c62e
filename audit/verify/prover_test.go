package verify_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/checkpoint"
	"sallyport/audit/segment"
	"sallyport/audit/verify"
)

// told notes what a proof took.
func told(opts verify.Options) (verify.Options, *[]string) {
	var list []string
	opts.Tell = func(err error) { list = append(list, err.Error()) }
	return opts, &list
}

// hashAt returns where the tree's file has the hash of a record.
func hashAt(seq int64) int64 { return tlog.StoredHashIndex(0, seq) * tlog.HashSize }

// edited changes the text of a line of a plain segment.
func edited(name string, line int) func(map[string][]byte) {
	return func(files map[string][]byte) {
		l := lines(files[name])
		l[line] = bytes.Replace(l[line], []byte(`"id":"01`), []byte(`"id":"02`), 1)
		files[name] = join(l)
	}
}

// TestProveChecksWhatItProves: a proof is made of a record, its hashes and a
// checkpoint, says nothing of other records, and is never one that does not check.
func TestProveChecksWhatItProves(t *testing.T) {
	f := newFixture(t, 30)
	mid := f.starts[1]
	seq, _, _ := segment.Parse(mid)
	id := fmt.Sprint(seq + 1)
	good, err := verify.Prove(f.dir, f.key, id, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	last := slices.IndexFunc(lines(f.files["checkpoints"]), func(l []byte) bool { return bytes.HasPrefix(l, []byte("— ")) })
	for name, tt := range map[string]struct {
		edit  func(map[string][]byte)
		fault verify.Fault // "" for a proof that is good all the same
		told  []string     // what is told, of which each holds the text
	}{
		"nothing":         {edit: func(map[string][]byte) {}},
		"another record":  {edit: edited(mid, 0)},
		"another segment": {edit: func(files map[string][]byte) { delete(files, f.starts[0]) }},
		"a hash that it does not take": {edit: func(files map[string][]byte) { // that of the pair two further
			files["tree"][hashAt((seq+1)^2)] ^= 1
		}},
		"an old checkpoint": {edit: func(files map[string][]byte) { files["checkpoints"][4] ^= 1 }},
		"the record":        {edit: edited(mid, 1), fault: verify.Changed, told: []string{"proving record " + id}},
		"a line before it":  {edit: func(files map[string][]byte) { files[mid] = join(lines(files[mid])[1:]) }, fault: verify.OutOfPlace, told: []string{"record " + id + " is not in its place, in " + mid}},
		"its segment":       {edit: func(files map[string][]byte) { delete(files, mid) }, fault: verify.Missing, told: []string{"is not in its place"}},
		"its hash":          {edit: func(files map[string][]byte) { files["tree"][hashAt(seq+1)] ^= 1 }},
		"the hash beside it": {
			edit: func(files map[string][]byte) { files["tree"][hashAt((seq+1)^1)] ^= 1 },
			told: []string{"proving record " + id, "tree: a hash is wrong; the records are good"},
		},
		"the tree":     {edit: func(files map[string][]byte) { delete(files, "tree") }, told: []string{"the log has no tree file"}},
		"half of it":   {edit: func(files map[string][]byte) { files["tree"] = files["tree"][:100] }, told: []string{"reading the tree", "tree: it is cut"}},
		"checkpoints":  {edit: func(files map[string][]byte) { delete(files, "checkpoints") }, fault: verify.BadHistory, told: []string{"no such file"}},
		"another end":  {edit: func(files map[string][]byte) { files["checkpoints"] = []byte("x\n") }, fault: verify.BadHistory, told: []string{"not whole"}},
		"a forged end": {edit: func(files map[string][]byte) { files["checkpoints"] = flipLast(files["checkpoints"]) }, fault: verify.BadHistory, told: []string{"not signed"}},
		"the last of them": {edit: func(files map[string][]byte) { // the one before is as good for this record
			l := lines(files["checkpoints"])
			files["checkpoints"] = join(l[:len(l)-(last+2)])
		}},
	} {
		t.Run(name, func(t *testing.T) {
			opts, list := told(verify.Options{})
			p, err := verify.Prove(f.with(t, tt.edit), f.key, id, opts)
			var bad *verify.Problem
			switch {
			case tt.fault != "" && (!errors.As(err, &bad) || bad.Fault != tt.fault):
				t.Errorf("Prove = %v, want %s", err, tt.fault)
			case tt.fault == "" && err != nil:
				t.Errorf("Prove = %v", err)
			case tt.fault == "" && (p.Check(f.key) != nil || !bytes.Equal(p.Record, good.Record)):
				t.Errorf("Prove = %s, a proof that is not good", p.Marshal())
			}
			if !slices.EqualFunc(*list, tt.told, strings.Contains) {
				t.Errorf("told %q, want %q", *list, tt.told)
			}
		})
	}
}

// flipLast changes the signature of the last checkpoint.
func flipLast(history []byte) []byte {
	out := bytes.Clone(history)
	out[len(out)-20] ^= 1
	return out
}

// TestProveWithoutTheTree: whatever was packed and removed, a proof is the same out of
// the records as out of the tree's file, and so is that of an anchor.
func TestProveWithoutTheTree(t *testing.T) {
	for name, f := range map[string]*fixture{"plain": newFixture(t, 40), "kept": newKeptFixture(t, 60)} {
		t.Run(name, func(t *testing.T) {
			first, _, _ := segment.Parse(f.starts[0])
			report, err := verify.Verify(f.dir, f.key, verify.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var seqs []int64
			for seq := first; seq < report.Covered; seq++ {
				seqs = append(seqs, seq)
			}
			proofs := func(dir string, want int) (out [][]byte) {
				opts, list := told(verify.Options{Anchors: [][]byte{f.anchor}})
				p, err := verify.ProveRecords(dir, f.key, seqs, opts)
				if err != nil || p.Covered() != len(seqs) || len(p.Anchors()) != 1 || len(*list) != want {
					t.Fatalf("ProveRecords = %v, told %q", err, *list)
				}
				defer p.Close()
				err = p.Each(func(p *verify.Proof) error {
					out = append(out, p.Marshal())
					return p.Check(f.key)
				})
				if err != nil {
					t.Fatal(err)
				}
				history, err := p.Checkpoints()
				if err != nil {
					t.Fatal(err)
				}
				return append(append(out, p.Anchors()[0].Marshal()), history...)
			}
			want := proofs(f.dir, 0)
			if got := proofs(f.with(t, func(files map[string][]byte) { delete(files, "tree") }), 1); !slices.EqualFunc(got, want, bytes.Equal) {
				t.Errorf("without the tree the proofs are\n%s\nwant\n%s", got, want)
			}
			if first == 0 {
				return
			}
			_, err = verify.Prove(f.dir, f.key, "0", verify.Options{})
			if !errors.Is(err, verify.ErrNotFound) || !strings.Contains(err.Error(), "0, which was removed in order") {
				t.Errorf("Prove of a record that was removed = %v", err)
			}
		})
	}
}

// TestProveBelievesNoIndex: where a record is said to be, it is looked for first.
func TestProveBelievesNoIndex(t *testing.T) {
	f := newFixture(t, 20)
	p, err := verify.Prove(f.dir, f.key, "5", verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(p.Record), `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	disk := errors.New("a disk that fails")
	for _, tt := range []struct {
		at   int64
		err  error
		want error
	}{
		{at: 5},
		{at: 6},
		{at: 1 << 40},
		{err: fmt.Errorf("%w: %s", verify.ErrNotFound, id), want: verify.ErrNotFound},
		{err: disk, want: disk},
	} {
		asked := ""
		opts := verify.Options{Find: func(id string) (int64, error) { asked = id; return tt.at, tt.err }}
		got, err := verify.Prove(f.dir, f.key, id, opts)
		if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || got.Index != 5) || asked != id {
			t.Errorf("%d, %v: Prove = %+v, %v, asked for %q", tt.at, tt.err, got, err, asked)
		}
	}
}

// TestProveOfWhatIsNotSigned: a record that no checkpoint covers is told from one that
// there is not.
func TestProveOfWhatIsNotSigned(t *testing.T) {
	base := tempDir(t)
	l, err := audit.Open(audit.Config{Dir: filepath.Join(base, "audit"), KeyFile: filepath.Join(base, "key"), Interval: time.Hour, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Append(t.Context(), &audit.Record{Kind: audit.Admit, Host: "h.example"}); err != nil {
		t.Fatal(err)
	}
	prove := func(id string) error {
		_, err := verify.Prove(filepath.Join(base, "audit"), l.Verifier(), id, verify.Options{})
		return err
	}
	if err := prove("1"); !errors.Is(err, verify.ErrNotCovered) {
		t.Errorf("Prove of a record that is not signed = %v, want ErrNotCovered", err)
	}
	if err := prove("2"); !errors.Is(err, verify.ErrNotFound) {
		t.Errorf("Prove of no record = %v, want ErrNotFound", err)
	}
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := prove("1"); err != nil {
		t.Errorf("Prove of a record that is signed = %v", err)
	}
}

// TestTheFirstCheckpointOfARecord: it is found without reading those before, however
// many there are.
func TestTheFirstCheckpointOfARecord(t *testing.T) {
	f := newFixture(t, 600)
	v, err := note.NewVerifier(f.key)
	if err != nil {
		t.Fatal(err)
	}
	var all []checkpoint.Checkpoint
	var msgs [][]byte
	_, torn, err := verify.Checkpoints(bytes.NewReader(f.files["checkpoints"]), f.key, true, func(msg []byte) {
		cp, err := checkpoint.Open(msg, v)
		if err != nil {
			t.Fatal(err)
		}
		all, msgs = append(all, cp), append(msgs, bytes.Clone(msg))
	})
	if err != nil || torn != 0 || len(f.files["checkpoints"]) < 8*checkpoint.MaxSize {
		t.Fatalf("Checkpoints = %d torn, %v, of %d octets", torn, err, len(f.files["checkpoints"]))
	}
	for seq := range all[len(all)-1].Tree.N {
		p, err := verify.ProveRecords(f.dir, f.key, []int64{seq}, verify.Options{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(c checkpoint.Checkpoint) bool { return c.Tree.N > seq })
		want := msgs[i:]
		if len(want) > 1 {
			want = [][]byte{msgs[i], msgs[len(msgs)-1]}
		}
		if got, err := p.Checkpoints(); err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("of record %d: %s, %v, want %s", seq, got, err, want)
		}
		p.Close()
	}
}

// TestCheckpointsAreInTheirOrder: some of them may be left out, and none moved.
func TestCheckpointsAreInTheirOrder(t *testing.T) {
	f := newFixture(t, 20)
	l := lines(f.files["checkpoints"])
	one := func(i int) []byte { return join(l[7*i : 7*i+7]) }
	for name, tt := range map[string]struct {
		history  []byte
		all, any string // what is wrong, "" for nothing
		torn     bool
	}{
		"all":         {history: join(l)},
		"some":        {history: slices.Concat(one(1), one(3)), all: "line 1: checkpoint 0 should stand here, and it is 1"},
		"a hole":      {history: slices.Concat(one(0), one(2)), all: "line 8: checkpoint 1 should stand here, and it is 2"},
		"twice":       {history: slices.Concat(one(0), one(0)), all: "it is 0", any: "line 8: checkpoint 0 stands after checkpoint 0"},
		"backwards":   {history: slices.Concat(one(1), one(0)), all: "it is 1", any: "line 8: checkpoint 0 stands after checkpoint 1"},
		"forged":      {history: flipLast(join(l)), all: "not signed", any: "not signed"},
		"not whole":   {history: join(l)[:len(join(l))-9], torn: true},
		"too long":    {history: bytes.Repeat([]byte("x"), 1<<20), all: "a checkpoint is too long", any: "a checkpoint is too long"},
		"many a line": {history: bytes.Repeat([]byte("x\n"), 1<<20), all: "a checkpoint is too long", any: "a checkpoint is too long"},
	} {
		for all, want := range map[bool]string{true: tt.all, false: tt.any} {
			_, torn, err := verify.Checkpoints(bytes.NewReader(tt.history), f.key, all, func([]byte) {})
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) || torn > 0 != tt.torn {
				t.Errorf("%s: Checkpoints(%v) = %d torn, %v, want %q", name, all, torn, err, want)
			}
		}
	}
}
