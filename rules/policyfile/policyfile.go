// Package policyfile reads the files that people write: policies, credentials
// and the gateway's configuration.
//
// It reads strictly. An unknown key, a duplicate key, an alias, a value of the
// wrong type, a second spelling of a host or a setting that this version does
// not build is an error: nothing is ever ignored, repaired or guessed. Every
// error is told at once, with its place and the source line.
//
// It trusts the caller for the bytes and, but for what a policy includes from
// the directory that it is given, does no I/O. It never sees a secret: a
// credential file says where one is.
package policyfile

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"path"

	"sallyport/rules"
)

// APIVersion is the version of the language that this package reads.
const APIVersion = "sallyport/v1"

// The kinds of document. An effective policy is what a run is under: one
// document that stands for a policy file and everything that it includes.
const (
	KindPolicy     = "Policy"
	KindEffective  = "EffectivePolicy"
	KindCredential = "Credential"
	KindGateway    = "Gateway"
)

// PolicyFile is what a policy file says beyond its rules.
type PolicyFile struct {
	Policy      *rules.Policy
	Name        string
	Owner       string
	Description string
	// Effective is the text of the effective policy, which the digest is of.
	Effective []byte
	Tests     []TestResult
	Never     []NeverResult
	// Lookups are what dns.resolve names, as "TYPE name", sorted.
	Lookups []string
	// Floor is the digest of the floor that the policy stands under, "" for
	// none; of a floor, its own.
	Floor string
	doc   *policyDoc
	read  *rules.Policy // what was compiled, whether its tests hold or not
}

// Unproven returns the policy also where a test or a statement under never does
// not hold: it is for those who tell what a file says, never for those who decide.
func (p *PolicyFile) Unproven() *rules.Policy { return p.read }

// Input is where a policy is read from.
type Input struct {
	Name string // of the file, as its reader knows it
	Data []byte
	// From is the file that an effective policy in Data was made of, "" if that
	// is not known: errors about what it says are told there, for people to mend.
	From string
	// Files holds what the file may include: its own directory. Nil includes nothing.
	Files fs.FS
	// Floor is what the organisation denies and limits, whatever the policy
	// says; Run narrows the policy for one run. Nil for none.
	Floor, Run *Input
	// Detect tells what package managers are configured with. Nil detects nothing.
	Detect Detector
	// Kept says that the file is an effective policy which was in force: what it
	// grants was held against the credentials then, and they are not needed again.
	// It is for those who review what was decided, never for those who decide.
	Kept bool
	// Stop, if not nil, is asked during long proofs, which its error ends.
	Stop func() error
}

// ParsePolicy is [ReadPolicy] for who needs the policy alone.
func ParsePolicy(name string, data []byte, creds []Credential) (*rules.Policy, error) {
	p, err := ReadPolicy(Input{Name: name, Data: data}, creds)
	if err != nil {
		return nil, err
	}
	return p.Policy, nil
}

// ReadPolicy reads a policy and all that it includes, or an effective policy.
// Rules may grant the credentials in creds, within their endpoints; what the
// files say that must never be admitted is proved, and their tests must hold.
// The policy's digest is that of the effective text. The error is [Errors].
//
// If all that is wrong are failing tests or statements, it returns what became
// of each beside the error; Policy is nil then.
func ReadPolicy(src Input, creds []Credential) (*PolicyFile, error) {
	d := read(src, creds, rules.PolicyScope)
	l := d.loader
	if d.parsed {
		d.stand(src, creds)
	}
	return d.finish(l, src.Data)
}

// ReadFloor reads a floor by itself. Its effective text can be read wherever a
// floor can. Its tests are asked of a policy that would let everything else through.
func ReadFloor(src Input, creds []Credential) (*PolicyFile, error) {
	d := read(src, creds, rules.FloorScope)
	return d.finish(d.loader, src.Data)
}

// read reads one file and what it includes, in a scope.
func read(src Input, creds []Credential, scope rules.Scope) *policyDoc {
	l := &loader{files: src.Files, creds: creds, dir: path.Dir(src.Name), docs: map[string]*policyDoc{}, scope: scope, detect: src.Detect, detected: map[string]*detected{}, stop: src.Stop, kept: src.Kept}
	d := l.load(src.Name, path.Base(src.Name), src.Data, nil)
	d.from = src.From
	return d
}

// finish makes of what was read what it says.
func (d *policyDoc) finish(l *loader, data []byte) (*PolicyFile, error) {
	if !d.parsed {
		return nil, l.err()
	}
	out := &PolicyFile{Name: d.name, Owner: d.owner, Description: d.description, Lookups: d.lookupTexts(), doc: d}
	digest := ""
	if l.err() == nil {
		out.Effective = d.effective()
		digest, out.Floor = Digest(out.Effective), d.floorDigest()
	}
	if l.err() == nil {
		d.checkLookups()
	}
	p := d.compile(digest, d.allRules(), d.runOf != nil)
	if err := l.err(); err != nil {
		return nil, err
	}
	d.checkEffective(data, out.Effective)
	out.Policy, out.read = p, p
	out.Tests = l.tests
	asked := p
	if d.floor != nil || d.run != nil { // the file's own tests are about what it says itself
		asked = d.compile(digest, d.ownRules(), false)
	}
	out.Tests = append(d.runTests(asked), out.Tests...)
	if d.run != nil { // those of what narrows it are about what comes of both
		out.Tests = append(append(out.Tests, d.run.runTests(p)...), d.run.loader.tests...)
	}
	out.Never = d.prove(p)
	if err := l.err(); err != nil {
		out.Policy = nil
		return out, err
	}
	return out, nil
}

// Digest returns "sha256:" and the hexadecimal digest of bytes. That of an
// effective policy identifies it in records.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
