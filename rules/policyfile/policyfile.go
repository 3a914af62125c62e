// Package policyfile reads the files that people write: policies, credentials
// and the gateway's configuration.
//
// It reads strictly. An unknown key, a duplicate key, an alias, a value of the
// wrong type, a second spelling of a host or a setting that this version does
// not build is an error: nothing is ever ignored, repaired or guessed. Every
// error is told at once, with its place and the source line.
//
// It trusts the caller for the bytes and does no I/O. It never sees a secret:
// a credential file says where one is.
package policyfile

import (
	"crypto/sha256"
	"encoding/hex"

	"sallyport/rules"
)

// APIVersion is the version of the language that this package reads.
const APIVersion = "sallyport/v1"

// The kinds of document.
const (
	KindPolicy     = "Policy"
	KindCredential = "Credential"
	KindGateway    = "Gateway"
)

// PolicyFile is what a policy file says beyond its rules.
type PolicyFile struct {
	Policy      *rules.Policy
	Name        string
	Owner       string
	Description string
	Tests       []TestResult
}

// ParsePolicy reads a policy. Rules may grant the credentials in creds, within
// their endpoints; the file's own tests must hold. The policy's digest is that
// of data. The error is [Errors].
func ParsePolicy(name string, data []byte, creds []Credential) (*rules.Policy, error) {
	p, err := ReadPolicy(name, data, creds)
	if err != nil {
		return nil, err
	}
	return p.Policy, nil
}

// ReadPolicy is [ParsePolicy] for tools that show more than the policy. If all
// that is wrong are failing tests, it returns their results beside the error;
// Policy is nil then.
func ReadPolicy(name string, data []byte, creds []Credential) (*PolicyFile, error) {
	f, root := open(name, data, KindPolicy)
	if root == nil {
		return nil, f.err()
	}
	d := policyDoc{file: f, creds: creds}
	d.read(root)
	p := d.compile(Digest(data))
	if err := f.err(); err != nil {
		return nil, err
	}
	out := &PolicyFile{Policy: p, Name: d.name, Owner: d.owner, Description: d.description}
	out.Tests = d.runTests(p)
	if err := f.err(); err != nil {
		out.Policy = nil
		return out, err
	}
	return out, nil
}

// Digest returns what identifies a file in records: "sha256:" and the
// hexadecimal digest of its exact bytes.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
