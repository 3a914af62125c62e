package guest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Spec is what the guest is to do. It comes over standard input and never in
// arguments or environment, which other processes of a machine can read and an
// engine writes to its disk.
type Spec struct {
	// Argv is the work. An Argv[0] without a slash is looked up in the work's PATH.
	Argv []string `json:"argv,omitempty"`
	// Look, instead of Argv, are paths to look for: of regular files that have the
	// text Having somewhere. The content of the first is sent back. See [Done.Found].
	Look   []string `json:"look,omitempty"`
	Having string   `json:"having,omitempty"`
	// All has every regular file sent back that the patterns in Look match
	// (path/filepath.Match), as a tar. It may have been read from anywhere that the
	// image's links lead to.
	All bool `json:"all,omitempty"`

	Env   []string `json:"env,omitempty"`   // NAME=value, over what the image has
	Unset []string `json:"unset,omitempty"` // names of the image's environment that are taken out
	Dir   string   `json:"dir,omitempty"`   // where the work starts; default "/"
	Home  string   `json:"home,omitempty"`  // made if it is not there

	Files  bool   `json:"files,omitempty"`  // a tar for Root follows
	Export bool   `json:"export,omitempty"` // send Root back when the work is over
	Root   string `json:"root,omitempty"`
	Bounds Bounds `json:"bounds"` // of Files and of Export
	Input  bool   `json:"input,omitempty"`

	Output   int64         `json:"output"`   // octets of stdout and stderr together; more kills the work
	Deadline time.Duration `json:"deadline"` // wall clock; then SIGTERM
	Grace    time.Duration `json:"grace"`    // from SIGTERM to SIGKILL
}

// Cause is why the work ended. The zero Cause is of a guest that did not say.
type Cause string

// The causes.
const (
	Exited      Cause = "exited"   // the work's first process ended of itself or by a signal
	TimedOut    Cause = "deadline" // by Spec.Deadline
	OutputLimit Cause = "output"   // by Spec.Output
	Terminated  Cause = "terminated"
	NotStarted  Cause = "not_started" // End.Error says why
	HostGone    Cause = "host_gone"   // the launcher hung up
)

// End says how the work ended.
type End struct {
	Cause  Cause  `json:"cause"`
	Exit   int    `json:"exit"`             // exit status of the first process, or as shells have it
	Signal int    `json:"signal,omitempty"` // that ended it
	Error  string `json:"error,omitempty"`
	Usage  Usage  `json:"usage"`
}

// Usage is what the kernel says the work used.
type Usage struct {
	MaxRSS int64         `json:"max_rss"` // octets; of the largest process
	User   time.Duration `json:"user"`
	System time.Duration `json:"system"`
	Reaped int           `json:"reaped"` // processes, orphans among them
}

// Done follows the files.
type Done struct {
	Skipped []string `json:"skipped,omitempty"` // what Export left out, and why
	Found   []Found  `json:"found,omitempty"`   // for Look: what is there
	Error   string   `json:"error,omitempty"`
}

// Found is a path of Spec.Look that is a regular file, maybe by way of links.
type Found struct {
	Path string `json:"path"`
	Real string `json:"real"`
}

func (s *Spec) check() error {
	switch {
	case (len(s.Argv) == 0) == (len(s.Look) == 0):
		return errors.New("one of argv and look is required")
	case len(s.Argv) > 0 && (s.Output <= 0 || s.Deadline <= 0 || s.Grace <= 0):
		return errors.New("limits of output and time are required")
	case (s.Files || s.Export) && (s.Root == "" || !s.Bounds.valid()):
		return errors.New("files need a root and bounds")
	}
	return s.checkLook()
}

func (s *Spec) checkLook() error {
	switch {
	case len(s.Look) == 0 && s.All:
		return errors.New("all is for look")
	case len(s.Look) > 0 && (s.Files || s.Export || s.Input || (s.Having == "") != s.All):
		return errors.New("look needs a text or all, and takes no files and no input")
	}
	return nil
}

// strict decodes one JSON value with no unknown field and nothing after it.
func strict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the value")
	}
	return nil
}

func parseSpec(data []byte) (*Spec, error) {
	var s Spec
	if err := strict(data, &s); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("reading the spec: %w", err)
	}
	return &s, nil
}
