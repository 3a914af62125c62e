package export

import (
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sallyport/audit"
	"sallyport/audit/verify"
	"sallyport/control/regular"
)

// bounds are what a bundle may make its reader do. Whoever made it may mean harm, and
// may have the key: what is kept in memory is bounded, whatever the bundle holds.
// What is not bounded is read through and never kept: the list of records, and the
// checkpoints, each of which is signed.
type bounds struct {
	directory int64            // octets of the archive's list of files
	files     map[string]int   // how many there are of a kind
	size      map[string]int64 // octets of each, unpacked
	policies  int64            // octets of all policies, unpacked
	named     int              // octets of the names of policies
	compared  int              // how often an anchor is compared with a checkpoint
}

// limits are far above what a bundle of [MaxBundle] records takes.
func limits() bounds {
	return bounds{
		directory: 12 << 20,
		files:     map[string]int{bundleProofs: MaxBundle, bundlePolicy: MaxBundle, bundleRun: MaxBundle, bundleAnchor: 1000},
		size: map[string]int64{
			bundleProofs: audit.MaxLine + 16<<10, bundleAnchor: 16 << 10, bundleRun: 32 << 20, bundlePolicy: 64 << 20, bundleKey: 4 << 10, bundleReadme: 4 << 20,
		},
		policies: 1 << 30, named: 4 << 20, compared: MaxBundle,
	}
}

// CheckBundle checks the bundle in a file against the public key: that every
// record has a good proof and every proof its record, that the policies are
// those of their names and of the records, and that each of its files is there,
// says what a bundle's says, and is none other. Anchors are checkpoints that
// were kept elsewhere: each must be one that the bundle was made with.
//
// It writes nothing, and needs no more memory for a large bundle than for a small one
// of as many records. It ends with the error of ctx when that is done: all the
// checkpoints of a log may take their time.
func CheckBundle(ctx context.Context, path, key string, anchors ...[]byte) (BundleReport, error) {
	return checkBundle(ctx, path, key, limits(), anchors)
}

func checkBundle(ctx context.Context, path, key string, within bounds, anchors [][]byte) (BundleReport, error) {
	b := &opened{stopped: ctx.Err, key: key, bounds: within, files: map[string]*zip.File{}, signed: map[[sha256.Size]byte]bool{}, runs: map[string][]int64{}, named: map[string]bool{}}
	f, st, err := regular.Open(path)
	if errors.Is(err, regular.ErrNot) {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return b.BundleReport, fmt.Errorf("reading the bundle: %w", err)
	}
	defer f.Close()
	z, err := list(f, st.Size(), within.directory)
	if err != nil {
		return b.BundleReport, fmt.Errorf("reading the bundle: %w", err)
	}
	err = b.take(z)
	for _, step := range []func() error{b.keyAndFormat, b.anchored, b.records, b.history, b.manifests, b.policies, b.readme} {
		if err != nil {
			return b.BundleReport, err
		}
		err = step()
	}
	if err == nil {
		err = b.madeWith(anchors)
	}
	return b.BundleReport, err
}

// list reads which files an archive says that it holds.
func list(f *os.File, size, most int64) (*zip.Reader, error) {
	m := &metered{f, most}
	z, err := zip.NewReader(m, size)
	switch {
	case errors.Is(err, errList):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("it was cut, or is no ZIP archive: %w", err)
	}
	m.left = math.MaxInt64
	return z, nil
}

// errList means that an archive names more files than a bundle has.
var errList = errors.New("the list of its files is longer than that of any bundle")

// metered reads no more than is left.
type metered struct {
	f    *os.File
	left int64
}

// ReadAt implements [io.ReaderAt].
func (m *metered) ReadAt(p []byte, at int64) (int, error) {
	if m.left < int64(len(p)) {
		return 0, errList
	}
	m.left -= int64(len(p))
	return m.f.ReadAt(p, at)
}

// opened is a bundle that is being checked.
type opened struct {
	BundleReport
	bounds
	stopped func() error // why to read no further
	key     string
	files   map[string]*zip.File
	proofs  []int64 // numbers of the records that they are of
	format  int     // as the README says
	signed  map[[sha256.Size]byte]bool
	kept    []*verify.AnchorProof
	runs    map[string][]int64 // manifests, by name: the records that tell, of the start and of the end
	named   map[string]bool    // policies that records name
}

// names are those of a bundle's files, by kind.
func names() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		bundleProofs: regexp.MustCompile(`^proofs/([0-9]{12,19})\.proof$`),
		bundlePolicy: regexp.MustCompile(`^policies/[0-9a-f]{64}\.yaml$`),
		bundleRun:    regexp.MustCompile(`^runs/[0-9A-Za-z][0-9A-Za-z_-]{0,63}\.json$`),
		bundleAnchor: regexp.MustCompile(`^anchors/[0-9]{3}\.proof$`),
	}
}

// take looks at the list of files. Who unzips a bundle and zips it again keeps
// neither their order nor their times, and may add directories.
func (b *opened) take(z *zip.Reader) error {
	forms, count, policies := names(), map[string]int{}, uint64(0)
	for _, f := range z.File {
		kind := kindOf(f.Name)
		if f.Name == kind && forms[kind] != nil && f.UncompressedSize64 == 0 && f.Mode().Type() == fs.ModeDir {
			continue
		}
		if err := b.one(f, kind, forms[kind]); err != nil {
			return err
		}
		b.files[f.Name] = f
		if count[kind]++; forms[kind] != nil && count[kind] > b.bounds.files[kind] {
			return fmt.Errorf("%s holds more than %d files", kind, b.bounds.files[kind])
		}
		if kind == bundlePolicy {
			policies += f.UncompressedSize64
		}
	}
	if policies > uint64(b.bounds.policies) {
		return fmt.Errorf("%s says that it holds %d octets, and %d is the most", bundlePolicy, policies, b.bounds.policies)
	}
	for _, name := range []string{bundleRecords, bundleKey, bundleHistory, bundleReadme} {
		if b.files[name] == nil {
			return fmt.Errorf("%s is missing", name)
		}
	}
	b.Policies, b.Runs, b.Anchors = count[bundlePolicy], count[bundleRun], count[bundleAnchor]
	slices.Sort(b.proofs)
	return nil
}

// one looks at one name, and at what is said to be behind it.
func (b *opened) one(f *zip.File, kind string, form *regexp.Regexp) error {
	fixed := slices.Contains([]string{bundleRecords, bundleKey, bundleHistory, bundleReadme}, f.Name)
	most := b.size[kind]
	switch {
	case !fixed && form == nil, form != nil && !form.MatchString(f.Name):
		return fmt.Errorf("%q is no file of a bundle", f.Name)
	case !f.Mode().IsRegular():
		return fmt.Errorf("%q is not a regular file", f.Name)
	case f.Flags&1 != 0:
		return fmt.Errorf("%q is encrypted", f.Name)
	case b.files[f.Name] != nil:
		return fmt.Errorf("%q is there twice", f.Name)
	case most > 0 && f.UncompressedSize64 > uint64(most):
		return fmt.Errorf("%q says that it holds %d octets, and %d is the most", f.Name, f.UncompressedSize64, most)
	case kind == bundleProofs:
		n, err := strconv.ParseInt(form.FindStringSubmatch(f.Name)[1], 10, 64)
		if err != nil || f.Name != proofName(n) {
			return fmt.Errorf("%q is no file of a bundle", f.Name)
		}
		b.proofs = append(b.proofs, n)
	}
	return nil
}

// kindOf returns the directory of a file, or its name if it is in none.
func kindOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i+1]
	}
	return name
}

func proofName(n int64) string { return fmt.Sprintf("%s%012d.proof", bundleProofs, n) }

// open opens a file. Reading it fails at the latest after as many octets as it is
// said to hold.
func (b *opened) open(name string) (io.ReadCloser, error) {
	r, err := b.files[name].Open()
	if err != nil {
		return nil, fmt.Errorf("reading %s of the bundle: %w", name, err)
	}
	return &stoppable{r, b.stopped}, nil
}

// stoppable ends where nobody waits for what is read any more.
type stoppable struct {
	io.ReadCloser
	stopped func() error
}

// Read implements [io.Reader].
func (s *stoppable) Read(p []byte) (int, error) {
	if err := s.stopped(); err != nil {
		return 0, err
	}
	return s.ReadCloser.Read(p)
}

// read reads a file whose size is bounded.
func (b *opened) read(name string) ([]byte, error) {
	if b.size[kindOf(name)] == 0 {
		panic("export: nothing bounds " + name)
	}
	r, err := b.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading %s of the bundle: %w", name, err)
	}
	return data, nil
}

func (b *opened) keyAndFormat() error {
	key, err := b.read(bundleKey)
	if err != nil {
		return err
	}
	if string(key) != strings.TrimSpace(b.key)+"\n" {
		return fmt.Errorf("%s is another key", bundleKey)
	}
	text, err := b.read(bundleReadme)
	if err != nil {
		return err
	}
	b.format, _, err = formatOf(text)
	return err
}

// records checks each proof, and that the list of records holds just those.
func (b *opened) records() error {
	f, err := b.open(bundleRecords)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, audit.MaxLine+2)
	for _, n := range b.proofs {
		p, err := b.proof(n)
		if err == nil {
			err = b.record(p)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", proofName(n), err)
		}
		line, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("reading %s of the bundle: %w", bundleRecords, err)
		}
		if !bytes.Equal(bytes.TrimSuffix(line, []byte("\n")), p.Record) || err != nil {
			return fmt.Errorf("%s does not hold just the records that are proved", bundleRecords)
		}
	}
	switch _, err := lines.ReadByte(); {
	case err == nil:
		return fmt.Errorf("%s does not hold just the records that are proved", bundleRecords)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("reading %s of the bundle: %w", bundleRecords, err)
	}
	return nil
}

// proof reads the proof of a record.
func (b *opened) proof(n int64) (*verify.Proof, error) {
	data, err := b.read(proofName(n))
	if err != nil {
		return nil, err
	}
	p, err := verify.ParseProof(data)
	if err != nil {
		return nil, err
	}
	if p.Index != n {
		return nil, fmt.Errorf("it is the proof of record %d", p.Index)
	}
	return p, nil
}

// record checks one proof, and notes what its record says of others.
func (b *opened) record(p *verify.Proof) error {
	if err := p.Check(b.key); err != nil {
		return err
	}
	var r audit.Record
	if err := json.Unmarshal(p.Record, &r); err != nil {
		return err
	}
	if r.Policy != "" && !b.named[r.Policy] {
		b.named[r.Policy] = true
		if b.bounds.named -= len(r.Policy); b.bounds.named < 0 {
			return errors.New("the records name too many policies")
		}
	}
	if name := manifestOf(&r); name != "" {
		at := append(b.runs[name], -1, -1)[:2]
		at[map[audit.Kind]int{audit.RunEnd: 1}[r.Kind]] = p.Index
		b.runs[name] = at
	}
	b.Records++
	sum := sha256.Sum256(p.Checkpoint)
	if b.signed[sum] {
		return nil // all proofs of a bundle are of one, as a rule
	}
	b.signed[sum] = true
	return b.ancestry(p.Checkpoint)
}

// history checks the checkpoints, and that those of the proofs are among them.
func (b *opened) history() error {
	f, err := b.open(bundleHistory)
	if err != nil {
		return err
	}
	defer f.Close()
	all := b.format < subsetFormat
	n, torn, err := verify.Checkpoints(f, b.key, all, func(msg []byte) { delete(b.signed, sha256.Sum256(msg)) })
	if err == nil && torn > 0 {
		err = errors.New("it ends within a checkpoint")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", bundleHistory, err)
	}
	if len(b.signed) > 0 {
		return fmt.Errorf("%s lacks the checkpoint of a proof", bundleHistory)
	}
	b.Checkpoints = n
	return nil
}

// manifests checks that what is told of runs is what the records tell.
func (b *opened) manifests() error {
	if b.Runs != len(b.runs) {
		return fmt.Errorf("%s tells of %d runs, and the records of %d", bundleRun, b.Runs, len(b.runs))
	}
	for _, name := range slices.Sorted(maps.Keys(b.runs)) {
		m := manifests{}
		for _, n := range slices.Sorted(slices.Values(b.runs[name])) {
			if n < 0 {
				continue
			}
			p, err := b.proof(n)
			var r audit.Record
			if err == nil {
				err = json.Unmarshal(p.Record, &r)
			}
			if err != nil {
				return fmt.Errorf("%q: %w", proofName(n), err)
			}
			m.take(&r)
		}
		if err := b.same(name, m); err != nil {
			return err
		}
	}
	return nil
}

func (b *opened) same(name string, m manifests) error {
	want, err := m.text(name)
	if err != nil {
		return err
	}
	f := b.files[name]
	if f == nil || f.UncompressedSize64 != uint64(len(want)) {
		return fmt.Errorf("%q is not what the records tell of the run", name)
	}
	got, err := b.read(name)
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("%q is not what the records tell of the run", name)
	}
	return err
}

// policies checks that each policy is the one of its name, and one that a record
// names.
func (b *opened) policies() error {
	there := 0
	for _, d := range slices.Sorted(maps.Keys(b.named)) {
		name := bundlePolicy + hexOf(d) + ".yaml"
		if b.files[name] == nil {
			b.Absent = append(b.Absent, d)
			continue
		}
		there++
		f, err := b.open(name)
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err = cmp.Or(err, f.Close()); err != nil {
			return fmt.Errorf("reading %s of the bundle: %w", name, err)
		}
		if hex.EncodeToString(h.Sum(nil)) != hexOf(d) {
			return fmt.Errorf("%q is not the policy of its name", name)
		}
	}
	if there != b.Policies {
		return fmt.Errorf("%s holds a policy that no record names", bundlePolicy)
	}
	return nil
}

// readme checks that the README is the one of its format and of these files, and so
// tells of policies that are not there.
func (b *opened) readme() error {
	got, err := b.read(bundleReadme)
	if err != nil {
		return err
	}
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
