package export

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/checkpoint"
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
	// Find returns the records that a filter matches, as an index tells them or the
	// log; nil reads the log. What goes in are the log's own lines.
	Find func(query.Filter) iter.Seq2[audit.Record, error]
	// Tell is told why the whole log is verified, as in [verify.Options].
	Tell func(error)
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

// ErrNotAsFound means that [BundleConfig.Find] told of another record than the log has.
var ErrNotAsFound = errors.New("the log has another record than the index")

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

// chosen are the records of a bundle: their numbers, and what explains them.
type chosen struct {
	cfg  BundleConfig
	near surroundings
	kind map[int64]audit.Kind
}

// options are those to check the log with.
func (c *chosen) options(ctx context.Context) verify.Options {
	return verify.Options{Anchors: c.cfg.Anchors, Stop: func() bool { return ctx.Err() != nil }, Tell: c.cfg.Tell}
}

// choose finds the records that match, and those that explain them.
func choose(ctx context.Context, cfg BundleConfig) (*chosen, error) {
	if cfg.Find == nil {
		cfg.Find = func(f query.Filter) iter.Seq2[audit.Record, error] { return query.RecordsUntil(ctx, cfg.Dir, f) }
	}
	c := &chosen{cfg, surroundings{map[string]bool{}, map[string]bool{}}, map[int64]audit.Kind{}}
	if err := c.take(ctx, cfg.Filter, func(r *audit.Record) bool { c.near.of(r); return true }); err != nil {
		return nil, err
	}
	filters, err := c.near.filters()
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if err := c.take(ctx, f, c.near.holds); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// take adds the records that a filter matches. A line that cannot be read may be one
// of them: then the log is verified, to say what it is.
func (c *chosen) take(ctx context.Context, f query.Filter, want func(*audit.Record) bool) error {
	for r, err := range c.cfg.Find(f) {
		_, unread := errors.AsType[*query.LineError](err)
		if unread || errors.Is(err, query.ErrDamaged) {
			return c.whole(ctx, err)
		}
		if err != nil {
			return err
		}
		if !want(&r) {
			continue
		}
		if c.kind[int64(r.Seq)] = r.Kind; len(c.kind) > MaxBundle {
			return fmt.Errorf("%w: %d at most", ErrTooMany, MaxBundle)
		}
	}
	return nil
}

// whole verifies the log because of what was found in it, and returns what is wrong.
func (c *chosen) whole(ctx context.Context, why error) error {
	if c.cfg.Tell != nil {
		c.cfg.Tell(why)
	}
	_, err := verify.Verify(c.cfg.Dir, c.cfg.Key, c.options(ctx))
	return cmp.Or(err, why)
}

// record reads the line of a record that was chosen.
func (c *chosen) record(line []byte) (r audit.Record, err error) {
	if err := query.Decode(line, &r); err != nil {
		return r, err
	}
	if !c.cfg.Filter.Match(&r) && !c.near.holds(&r) {
		return r, fmt.Errorf("%w: record %d", ErrNotAsFound, r.Seq)
	}
	return r, nil
}

// Bundle writes a ZIP archive of the records that match: what can be kept, and
// proved, without the log. It checks that of the log which goes in, see
// [verify.ProveRecords], and not that no record was taken out of it.
func Bundle(ctx context.Context, w io.Writer, cfg BundleConfig) (BundleReport, error) {
	var out BundleReport
	these, err := choose(ctx, cfg)
	if err != nil {
		return out, err
	}
	seqs := slices.Sorted(maps.Keys(these.kind))
	proofs, err := verify.ProveRecords(cfg.Dir, cfg.Key, seqs, these.options(ctx))
	if err != nil {
		return out, err
	}
	defer proofs.Close()
	for _, seq := range seqs[proofs.Covered():] {
		if out.LeftOut == nil {
			out.LeftOut = map[audit.Kind]int64{}
		}
		out.LeftOut[these.kind[seq]]++
		out.Uncovered++
	}
	if out.Uncovered > 0 && !cfg.Covered {
		return out, fmt.Errorf("%d of %d records are %w", out.Uncovered, len(seqs), ErrUncovered)
	}
	history, err := proofs.Checkpoints()
	if err != nil {
		return out, these.whole(ctx, err)
	}
	b := &bundle{zip: zip.NewWriter(w), now: cfg.Now.UTC()}
	digests := b.addRecords(these, proofs, &out)
	b.add(bundleKey, []byte(strings.TrimSpace(cfg.Key)+"\n"))
	b.addHistory(history, proofs.Anchors(), &out)
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
// returns the policies that they name. The lines are read twice: they may be too
// many to keep.
func (b *bundle) addRecords(these *chosen, proofs *verify.Prover, out *BundleReport) (policies map[string]bool) {
	policies, runs := map[string]bool{}, manifests{}
	lines := b.create(bundleRecords)
	b.do(func() error {
		return proofs.Lines(func(line []byte) error {
			r, err := these.record(line)
			if err != nil {
				return err
			}
			runs.take(&r)
			if r.Policy != "" {
				policies[r.Policy] = true
			}
			out.Records++
			_, err = lines.Write(append(line, '\n'))
			return err
		})
	})
	b.do(func() error {
		return proofs.Each(func(p *verify.Proof) error {
			b.add(proofName(p.Index), p.Marshal())
			return b.err
		})
	})
	out.Runs = len(runs)
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		b.do(func() error {
			text, err := runs.text(name)
			b.add(name, text)
			return err
		})
	}
	return policies
}

// addHistory adds the checkpoints that tell of the records, and the anchors.
func (b *bundle) addHistory(checkpoints [][]byte, anchors []*verify.AnchorProof, out *BundleReport) {
	var history []byte
	for _, msg := range checkpoints {
		history = checkpoint.Append(history, msg)
	}
	b.add(bundleHistory, history)
	for i, a := range anchors {
		b.add(fmt.Sprintf("%s%03d.proof", bundleAnchor, i), a.Marshal())
	}
	out.Checkpoints, out.Anchors = len(checkpoints), len(anchors)
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
	w := b.create(name)
	b.do(func() error {
		_, err := w.Write(data)
		return err
	})
}

// create begins a file, which ends where the next one begins.
func (b *bundle) create(name string) (w io.Writer) {
	b.do(func() (err error) {
		w, err = b.zip.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: b.now})
		return err
	})
	return w
}

// do does a step, unless one has failed.
func (b *bundle) do(step func() error) {
	if b.err != nil {
		return
	}
	if err := step(); b.err == nil {
		b.err = err
	}
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
