// Package control holds what the launcher, the gateway and the broker say to
// each other: the cell file, and JSON over unix sockets with checked peers.
//
// A cell file is the truth about one attached cell. The launcher, as root,
// writes it; the daemons read it when they start and when they are told to, so
// that either can be restarted under running sandboxes. It holds placeholders,
// never secrets. Nothing here trusts a sandbox or is reachable from one.
package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sallyport/control/durable"
)

// CellFile describes one attached cell.
type CellFile struct {
	Cell    string     `json:"cell"`
	Run     string     `json:"run"`
	Index   int        `json:"index"`
	Sandbox netip.Addr `json:"sandbox"` // the source address that identifies the cell
	Gateway netip.Addr `json:"gateway"`
	Policy  string     `json:"policy"` // "sha256:…"
	Grants  []Grant    `json:"grants"`
	Created time.Time  `json:"created"`
	// Origin says where the policy was read, so that it can be read again; nil
	// where it is not read again.
	Origin *Origin `json:"origin,omitempty"`
	// Trusts are the fingerprints of the CA certificates that the sandbox was given.
	Trusts []string `json:"trusts,omitempty"`
}

// Origin is where a run's policy comes from.
type Origin struct {
	File   string `json:"file"`             // absolute path of the policy file
	Narrow string `json:"narrow,omitempty"` // that of the file that narrows it
	// Detected is what was found for the policy when the run began: the image and
	// the variables of who started it are not asked again.
	Detected []Detected `json:"detected,omitempty"`
	// Workspace is the directory whose files are for the sandbox to change, "" for
	// none, and Owner the user id of who asked for the run: no policy is read that
	// lies there, or belongs to anybody but Owner and root.
	Workspace string `json:"workspace,omitempty"`
	Owner     int    `json:"owner,omitempty"`
}

// Detected is a server that a package manager is configured with, by name alone:
// what else its address holds may be a secret.
type Detected struct {
	Manager string `json:"manager"`
	Host    string `json:"host"`
	Port    uint16 `json:"port"`
	Where   string `json:"where"` // file:line, or the name of a variable
}

// Grant gives a run the use of a credential.
type Grant struct {
	Credential  string `json:"credential"`
	Env         string `json:"env,omitempty"` // variable that holds the placeholder inside
	Placeholder string `json:"placeholder"`
	Place       Place  `json:"place"`
	// More are the other values that the sandbox gets, which never stand in a
	// request: the secret half of a pair of keys.
	More []Value `json:"more,omitempty"`
	// Generation is that of the credential when the run was granted it: the grant is
	// good as long as the credential has the same (ADR-0057).
	Generation string `json:"generation,omitempty"`
}

// Value is a placeholder and the variable that holds it inside.
type Value struct {
	Env         string `json:"env,omitempty"`
	Placeholder string `json:"placeholder"`
	// ID is what stands in requests that were signed with a document, which
	// itself stands nowhere.
	ID string `json:"id,omitempty"`
	// File says that the value is in a file inside, and the variable holds its path.
	File bool `json:"file,omitempty"`
}

// Place is where a credential goes in a request.
type Place struct {
	Type   string `json:"type"`   // bearer, header, basic, query, aws-sigv4 …
	Header string `json:"header"` // canonical name
	// Fields, Payload and Body say what the broker needs to sign: the header
	// fields, a hash of the body, and the body itself.
	Fields  bool `json:"fields,omitempty"`
	Payload bool `json:"payload,omitempty"`
	Body    bool `json:"body,omitempty"`
	// Token is the endpoint whose tokens the broker gets itself: the gateway
	// answers a sandbox that asks it.
	Token string `json:"token,omitempty"`
	// Device is the endpoint beside it at which a sign-in by device code begins.
	Device string `json:"device,omitempty"`
	// Name is what a type needs to know besides: the account of a shared key, the
	// member of a token answer, or a client's id.
	Name string `json:"name,omitempty"`
	// Own are further places in which the API takes keys, a line each, kind and
	// name with a colon between them.
	Own string `json:"own,omitempty"`
}

const maxFile = 1 << 20

// Path returns the name of a cell's file in dir.
func Path(dir, cell string) string { return filepath.Join(dir, cell+".json") }

// Write puts f into dir, whole or not at all, readable by its group.
func (f *CellFile) Write(dir string, gid int) error {
	if f.Cell == "" || f.Run == "" || !f.Sandbox.Is4() || f.Policy == "" {
		return errors.New("writing a cell file: cell, run, address and policy are required")
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("writing a cell file: %w", err)
	}
	if err := durable.Write(Path(dir, f.Cell), data, 0o640, durable.Owner{UID: 0, GID: gid}); err != nil {
		return fmt.Errorf("writing a cell file: %w", err)
	}
	return nil
}

// Read returns the file of one cell. A cell that is not there is [fs.ErrNotExist].
func Read(dir, cell string) (*CellFile, error) {
	if cell == "" || strings.ContainsAny(cell, "/.") {
		return nil, fmt.Errorf("reading a cell file: %q is not a cell", cell)
	}
	file, err := os.Open(Path(dir, cell))
	if err != nil {
		return nil, fmt.Errorf("reading a cell file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return nil, fmt.Errorf("reading a cell file: %w", err)
	}
	var f CellFile
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("reading cell file %q: %w", file.Name(), err)
	}
	if f.Cell != cell || f.Run == "" || !f.Sandbox.Is4() || f.Policy == "" {
		return nil, fmt.Errorf("reading cell file %q: incomplete", file.Name())
	}
	return &f, nil
}

// ReadAll returns every cell in dir. One that cannot be read is left out and
// told in err: the others stay in force.
func ReadAll(dir string) (cells []*CellFile, err error) {
	names, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading cell files: %w", err)
	}
	var errs []error
	for _, n := range names {
		cell, ok := strings.CutSuffix(n.Name(), ".json")
		if !ok {
			continue
		}
		f, err := Read(dir, cell)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		cells = append(cells, f)
	}
	return cells, errors.Join(errs...)
}

// Remove takes a cell's file away; one that is not there is no error.
func Remove(dir, cell string) error {
	if err := os.Remove(Path(dir, cell)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a cell file: %w", err)
	}
	return nil
}

// PolicyPath returns where dir holds the policy with a digest ("sha256:…").
func PolicyPath(dir, digest string) string {
	_, sum, _ := strings.Cut(digest, ":")
	return filepath.Join(dir, sum+".yaml")
}
