package export

import (
	"archive/zip"
	"bytes"
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
	Now      time.Time // named in the README, and the time of its files
}

// BundleReport is what a bundle holds.
type BundleReport struct {
	Records  int      `json:"records"`
	Policies int      `json:"policies"`
	Absent   []string `json:"absent,omitempty"` // policies that are named and were not found
}

// MaxBundle is how many records a bundle holds: each has a proof of its own.
const MaxBundle = 20_000

// ErrTooMany means that more than [MaxBundle] records match.
var ErrTooMany = errors.New("too many records for a bundle")

// The files of a bundle.
const (
	bundleRecords = "records.jsonl"
	bundleProofs  = "proofs/"
	bundlePolicy  = "policies/"
	bundleKey     = "log.pub"
	bundleHistory = "checkpoints"
	bundleReadme  = "README.txt"
)

// Bundle checks the whole log and writes a ZIP archive of the records that
// match: what can be kept, and proved, without the log.
func Bundle(w io.Writer, cfg BundleConfig) (BundleReport, error) {
	var out BundleReport
	recs := map[int64]audit.Record{}
	proofs, err := verify.ProveAll(cfg.Dir, cfg.Key, func(line []byte) bool {
		var r audit.Record
		if json.Unmarshal(line, &r) != nil || !cfg.Filter.Match(&r) {
			return false
		}
		recs[int64(r.Seq)] = r
		return len(recs) <= MaxBundle
	})
	switch {
	case err != nil:
		return out, err
	case len(recs) > MaxBundle:
		return out, fmt.Errorf("%w: %d at most", ErrTooMany, MaxBundle)
	}
	b := &bundle{zip: zip.NewWriter(w), now: cfg.Now.UTC()}
	var lines bytes.Buffer
	digests := map[string]bool{}
	for _, p := range proofs {
		lines.Write(append(bytes.Clone(p.Record), '\n'))
		b.add(fmt.Sprintf("%s%012d.proof", bundleProofs, p.Index), p.Marshal())
		if d := recs[p.Index].Policy; d != "" {
			digests[d] = true
		}
	}
	out.Records = len(proofs)
	b.add(bundleRecords, lines.Bytes())
	b.add(bundleKey, []byte(strings.TrimSpace(cfg.Key)+"\n"))
	history, err := os.ReadFile(filepath.Join(cfg.Dir, bundleHistory))
	if err != nil {
		return out, fmt.Errorf("bundling: %w", err)
	}
	b.add(bundleHistory, history)
	for _, d := range slices.Sorted(maps.Keys(digests)) {
		text, ok := policyText(cfg.Policies, d)
		if !ok {
			out.Absent = append(out.Absent, d)
			continue
		}
		b.add(bundlePolicy+hexOf(d)+".yaml", text)
		out.Policies++
	}
	b.add(bundleReadme, readme(out, b.now))
	if b.err == nil {
		b.err = b.zip.Close()
	}
	if b.err != nil {
		return out, fmt.Errorf("bundling: %w", b.err)
	}
	return out, nil
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

func readme(r BundleReport, now time.Time) []byte {
	return fmt.Appendf(nil, `Records of a Sallyport audit log, with their proofs.
Made on %s.

records.jsonl    %d records, one JSON object a line, as they stand in the log
proofs/          a proof for each: its line, its path through the log's Merkle
                 tree (C2SP tlog-proof), and a checkpoint that was signed
policies/        %d policies that the records name, each by its SHA-256
checkpoints      every checkpoint of the log at that time
log.pub          the public key that the checkpoints are signed with

To check all of it, nothing else of the log is needed but the public key, from
somebody who is trusted to know it (the one in here proves nothing by itself):

    sallyport audit verify --key KEY --bundle THIS-FILE

By hand: the SHA-256 of a zero octet and a record's line is a leaf of an
RFC 6962 tree; the proof's hashes lead from it to the root that the checkpoint
names; the checkpoint is a signed note (C2SP signed-note, Ed25519).

What this shows: each record was in the log, at its place, when the checkpoint
was signed, and is unchanged. What it does not: which other records there are.
`, now.Format(time.RFC3339), r.Records, r.Policies)
}

// maxMember bounds what a file of a bundle makes its reader keep.
const maxMember = 2 << 30

// CheckBundle checks the bundle in a file against the public key: that every
// record has a good proof and every proof its record, and that the policies are
// those of their names.
func CheckBundle(path, key string) (BundleReport, error) {
	var out BundleReport
	z, err := zip.OpenReader(path)
	if err != nil {
		return out, fmt.Errorf("reading the bundle: %w", err)
	}
	defer z.Close() //nolint:errcheck // it was only read
	var lines, proved bytes.Buffer
	seen := map[string]bool{}
	for _, f := range z.File { // proofs stand in the order of their records
		if seen[f.Name] {
			return out, fmt.Errorf("%s is there twice", f.Name)
		}
		seen[f.Name] = true
		data, err := member(f)
		if err != nil {
			return out, err
		}
		switch {
		case strings.HasPrefix(f.Name, bundleProofs):
			p, err := verify.ParseProof(data)
			if err == nil {
				err = p.Check(key)
			}
			if err != nil {
				return out, fmt.Errorf("%s: %w", f.Name, err)
			}
			proved.Write(append(p.Record, '\n'))
			out.Records++
		case strings.HasPrefix(f.Name, bundlePolicy):
			sum := sha256.Sum256(data)
			if f.Name != bundlePolicy+hex.EncodeToString(sum[:])+".yaml" {
				return out, fmt.Errorf("%s is not the policy of its name", f.Name)
			}
			out.Policies++
		case f.Name == bundleRecords:
			lines.Write(data)
		}
	}
	if !bytes.Equal(lines.Bytes(), proved.Bytes()) {
		return out, fmt.Errorf("%s does not hold just the records that are proved", bundleRecords)
	}
	return out, nil
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
