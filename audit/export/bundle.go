package export

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/audit/verify"
)

// BundleConfig says what goes into a bundle.
type BundleConfig struct {
	Dir      string // of the log
	Key      string // the public key's text
	Policies string // directory of policies by digest; empty leaves them out
	Filter   query.Filter
	Anchors  [][]byte  // checkpoints that were kept elsewhere: the log is checked against them, and they go in
	Covered  bool      // leave out matching records that no checkpoint covers yet, rather than fail
	Now      time.Time // named in the README, and the time of its files
}

// BundleReport is what a bundle holds.
type BundleReport struct {
	Records     int `json:"records"`
	Policies    int `json:"policies"`
	Runs        int `json:"runs"` // whose manifest or result is in it
	Checkpoints int `json:"checkpoints"`
	Anchors     int `json:"anchors"` // that the records were checked against
	// Uncovered records match and are not in the bundle: no checkpoint covers them yet.
	Uncovered int                  `json:"uncovered,omitempty"`
	LeftOut   map[audit.Kind]int64 `json:"left_out,omitempty"` // them, by kind
	Absent    []string             `json:"absent,omitempty"`   // policies that are named and were not found
}

// MaxBundle is how many records a bundle holds: each has a proof of its own.
const MaxBundle = 20_000

// ErrTooMany means that more than [MaxBundle] records match.
var ErrTooMany = errors.New("too many records for a bundle")

// ErrUncovered means that records match which no checkpoint covers yet.
var ErrUncovered = errors.New("covered by no checkpoint yet, and cannot be proved")

// The files of a bundle.
const (
	bundleRecords = "records.jsonl"
	bundleProofs  = "proofs/"
	bundlePolicy  = "policies/"
	bundleRun     = "runs/"
	bundleAnchor  = "anchors/"
	bundleKey     = "log.pub"
	bundleHistory = "checkpoints"
	bundleReadme  = "README.txt"
)

// chosen are the records of a bundle, and their proofs.
type chosen struct {
	records map[int64]audit.Record
	proofs  []*verify.Proof
	anchors []*verify.AnchorProof
}

// uncovered counts by kind what could not be proved.
func (c *chosen) uncovered() map[audit.Kind]int64 {
	out := map[audit.Kind]int64{}
	for _, r := range c.records {
		out[r.Kind]++
	}
	for _, p := range c.proofs {
		kind := c.records[p.Index].Kind
		if out[kind]--; out[kind] == 0 {
			delete(out, kind)
		}
	}
	return out
}

// choose checks the whole log and proves the records that match.
func choose(ctx context.Context, cfg BundleConfig) (chosen, error) {
	out := chosen{records: map[int64]audit.Record{}}
	near, err := surroundingsOf(ctx, cfg)
	if err != nil {
		return out, err
	}
	out.proofs, out.anchors, err = verify.ProveAll(cfg.Dir, cfg.Key, verify.Options{Anchors: cfg.Anchors, Stop: func() bool { return ctx.Err() != nil }}, func(line []byte) bool {
		var r audit.Record
		if query.Decode(line, &r) != nil || !cfg.Filter.Match(&r) && !near.holds(&r) {
			return false
		}
		out.records[int64(r.Seq)] = r
		return len(out.records) <= MaxBundle
	})
	uncovered := len(out.records) - len(out.proofs)
	switch {
	case err != nil:
		return out, err
	case len(out.records) > MaxBundle:
		return out, fmt.Errorf("%w: %d at most", ErrTooMany, MaxBundle)
	case uncovered > 0 && !cfg.Covered:
		return out, fmt.Errorf("%d of %d records are %w", uncovered, len(out.records), ErrUncovered)
	}
	return out, nil
}

// Bundle checks the whole log and writes a ZIP archive of the records that
// match: what can be kept, and proved, without the log.
func Bundle(ctx context.Context, w io.Writer, cfg BundleConfig) (BundleReport, error) {
	var out BundleReport
	these, err := choose(ctx, cfg)
	out.Uncovered = len(these.records) - len(these.proofs)
	if err != nil {
		return out, err
	}
	out.LeftOut = these.uncovered()
	b := &bundle{zip: zip.NewWriter(w), now: cfg.Now.UTC()}
	digests := b.addRecords(these, &out)
	b.add(bundleKey, []byte(strings.TrimSpace(cfg.Key)+"\n"))
	history, err := os.ReadFile(filepath.Join(cfg.Dir, bundleHistory))
	if err != nil {
		return out, fmt.Errorf("bundling: %w", err)
	}
	n, size, err := verify.Checkpoints(history, cfg.Key)
	if err != nil {
		return out, fmt.Errorf("bundling: %s: %w", bundleHistory, err)
	}
	out.Checkpoints = n
	b.add(bundleHistory, history[:size])
	for i, a := range these.anchors {
		b.add(fmt.Sprintf("%s%03d.proof", bundleAnchor, i), a.Marshal())
	}
	out.Anchors = len(these.anchors)
	b.addPolicies(cfg.Policies, digests, &out)
	text, err := readme(bundleFormat, out, b.now)
	if err != nil {
		return out, fmt.Errorf("bundling: %w", err)
	}
	b.add(bundleReadme, text)
	if b.err == nil {
		b.err = b.zip.Close()
	}
	if b.err != nil {
		return out, fmt.Errorf("bundling: %w", b.err)
	}
	return out, nil
}

// addRecords adds the records, a proof of each, and what they tell of runs. It
// returns the policies that they name.
func (b *bundle) addRecords(these chosen, out *BundleReport) (policies map[string]bool) {
	var lines bytes.Buffer
	policies, runs := map[string]bool{}, manifests{}
	for _, p := range these.proofs {
		r := these.records[p.Index]
		runs.take(&r)
		lines.Write(append(bytes.Clone(p.Record), '\n'))
		b.add(fmt.Sprintf("%s%012d.proof", bundleProofs, p.Index), p.Marshal())
		if r.Policy != "" {
			policies[r.Policy] = true
		}
	}
	out.Records, out.Runs = len(these.proofs), len(runs)
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		text, err := runs.text(name)
		if err != nil && b.err == nil {
			b.err = err
		}
		b.add(name, text)
	}
	b.add(bundleRecords, lines.Bytes())
	return policies
}

// addPolicies adds the texts of the policies that records name, and notes which
// are not there.
func (b *bundle) addPolicies(dir string, digests map[string]bool, out *BundleReport) {
	for _, d := range slices.Sorted(maps.Keys(digests)) {
		text, ok := policyText(dir, d)
		if !ok {
			out.Absent = append(out.Absent, d)
			continue
		}
		b.add(bundlePolicy+hexOf(d)+".yaml", text)
		out.Policies++
	}
}

// bundle keeps the first error.
type bundle struct {
	zip *zip.Writer
	now time.Time
	err error
}

func (b *bundle) add(name string, data []byte) {
	if b.err != nil {
		return
	}
	f, err := b.zip.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: b.now})
	if err == nil {
		_, err = f.Write(data)
	}
	b.err = err
}

func hexOf(digest string) string {
	_, sum, _ := strings.Cut(digest, ":")
	return sum
}

// policyText reads a policy and makes sure that it is the one that is named.
// Digests come out of the log: one of another form reaches no file.
func policyText(dir, digest string) ([]byte, bool) {
	want := hexOf(digest)
	if raw, err := hex.DecodeString(want); dir == "" || err != nil || len(raw) != sha256.Size {
		return nil, false
	}
	text, err := os.ReadFile(filepath.Join(dir, want+".yaml"))
	sum := sha256.Sum256(text)
	return text, err == nil && hex.EncodeToString(sum[:]) == want
}

// maxMember bounds what a file of a bundle makes its reader keep.
const maxMember = 2 << 30

// CheckBundle checks the bundle in a file against the public key: that every
// record has a good proof and every proof its record, that the policies are
// those of their names and of the records, and that each of its files is there,
// says what a bundle's says, and is none other. Anchors are checkpoints that
// were kept elsewhere: each must be one that the bundle was made with.
func CheckBundle(path, key string, anchors ...[]byte) (BundleReport, error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return BundleReport{}, fmt.Errorf("reading the bundle: %w", err)
	}
	defer z.Close() //nolint:errcheck // it was only read
	b := &opened{key: key, files: map[string][]byte{}, named: map[string]bool{}, runs: manifests{}}
	// Who unzips a bundle and zips it again keeps neither the order of its files
	// nor their times, and may add directories. By name, proofs stand in the
	// order of their records.
	slices.SortStableFunc(z.File, func(f, g *zip.File) int { return strings.Compare(f.Name, g.Name) })
	for _, f := range z.File {
		if f.UncompressedSize64 == 0 && (f.Name == bundleProofs || f.Name == bundlePolicy || f.Name == bundleRun || f.Name == bundleAnchor) {
			continue
		}
		if _, twice := b.files[f.Name]; twice {
			return b.BundleReport, fmt.Errorf("%q is there twice", f.Name)
		}
		data, err := member(f)
		if err == nil {
			b.files[f.Name] = data
			err = b.take(f.Name, data)
		}
		if err != nil {
			return b.BundleReport, err
		}
	}
	if err := b.whole(); err != nil {
		return b.BundleReport, err
	}
	return b.BundleReport, b.anchored(anchors)
}

// opened is a bundle that is being checked.
type opened struct {
	BundleReport
	key    string
	files  map[string][]byte
	proved bytes.Buffer // records that have a proof
	signed [][]byte     // the checkpoints of the proofs
	kept   []*verify.AnchorProof
	runs   manifests       // of the records
	named  map[string]bool // policies that records name
}

// take checks one file by itself.
func (b *opened) take(name string, data []byte) error {
	switch {
	case strings.HasPrefix(name, bundleProofs):
		p, err := verify.ParseProof(data)
		if err == nil {
			err = p.Check(b.key)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		return b.proof(name, p)
	case strings.HasPrefix(name, bundlePolicy):
		sum := sha256.Sum256(data)
		if name != bundlePolicy+hex.EncodeToString(sum[:])+".yaml" {
			return fmt.Errorf("%q is not the policy of its name", name)
		}
		b.Policies++
	case strings.HasPrefix(name, bundleAnchor):
		return b.anchor(name, data)
	case strings.HasPrefix(name, bundleRun): // compared when all records were seen
		b.Runs++
	case name != bundleRecords && name != bundleKey && name != bundleHistory && name != bundleReadme:
		return fmt.Errorf("%q is no file of a bundle", name)
	}
	return nil
}

func (b *opened) proof(name string, p *verify.Proof) error {
	var r audit.Record
	if name != fmt.Sprintf("%s%012d.proof", bundleProofs, p.Index) {
		return fmt.Errorf("%q is the proof of record %d", name, p.Index)
	}
	if err := json.Unmarshal(p.Record, &r); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	if r.Policy != "" {
		b.named[r.Policy] = true
	}
	b.runs.take(&r)
	b.proved.Write(append(bytes.Clone(p.Record), '\n'))
	b.signed = append(b.signed, p.Checkpoint)
	b.Records++
	return nil
}

// whole checks the files against each other.
func (b *opened) whole() error {
	for _, name := range []string{bundleRecords, bundleKey, bundleHistory, bundleReadme} {
		if _, ok := b.files[name]; !ok {
			return fmt.Errorf("%s is missing", name)
		}
	}
	if !bytes.Equal(b.files[bundleRecords], b.proved.Bytes()) {
		return fmt.Errorf("%s does not hold just the records that are proved", bundleRecords)
	}
	if string(b.files[bundleKey]) != strings.TrimSpace(b.key)+"\n" {
		return fmt.Errorf("%s is another key", bundleKey)
	}
	history := b.files[bundleHistory]
	n, size, err := verify.Checkpoints(history, b.key)
	if err == nil && size != int64(len(history)) {
		err = errors.New("it ends within a checkpoint")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", bundleHistory, err)
	}
	b.Checkpoints = n
	for _, msg := range b.signed {
		if !bytes.Contains(history, msg) {
			return fmt.Errorf("%s lacks the checkpoint of a proof", bundleHistory)
		}
	}
	if err := b.ancestry(); err != nil {
		return err
	}
	if err := b.manifests(); err != nil {
		return err
	}
	return b.policies()
}

// manifests checks that what is told of runs is what the records tell.
func (b *opened) manifests() error {
	if b.Runs != len(b.runs) {
		return fmt.Errorf("%s tells of %d runs, and the records of %d", bundleRun, b.Runs, len(b.runs))
	}
	for name := range b.runs {
		if text, err := b.runs.text(name); err != nil || !bytes.Equal(text, b.files[name]) {
			return fmt.Errorf("%q is not what the records tell of the run", name)
		}
	}
	return nil
}

// policies checks that each policy is one that a record names, and that the
// README tells of those that are not there, and says what it should.
func (b *opened) policies() error {
	there := 0
	for _, d := range slices.Sorted(maps.Keys(b.named)) {
		if _, ok := b.files[bundlePolicy+hexOf(d)+".yaml"]; ok {
			there++
		} else {
			b.Absent = append(b.Absent, d)
		}
	}
	if there != b.Policies {
		return fmt.Errorf("%s holds a policy that no record names", bundlePolicy)
	}
	return b.readme()
}

// readme checks that the README is the one of its format and of these files.
func (b *opened) readme() error {
	got := b.files[bundleReadme]
	format, made, err := formatOf(got)
	if err != nil {
		return err
	}
	b.LeftOut, b.Uncovered = leftOutOf(got)
	want, err := readme(format, b.BundleReport, made)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%s is not the one of these files: it was replaced, or a policy or checkpoint was removed", bundleReadme)
	}
	return err
}

func member(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("reading the bundle: %w", err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxMember))
	if err != nil {
		return nil, fmt.Errorf("reading %s of the bundle: %w", f.Name, err)
	}
	return data, nil
}
