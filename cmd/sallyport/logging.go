package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/capture"
	"sallyport/proxy/dial"
	"sallyport/rules"
	"sallyport/rules/policyfile"
)

// logOptions are what a command line says about the log, in place of the
// configuration.
type logOptions struct{ keep, recipient string }

func (o *logOptions) add(c *cobra.Command) {
	c.Flags().StringVar(&o.keep, "audit-keep", "", "remove records that are older, such as 90d; default: what the configuration says, else keep all")
	c.Flags().StringVar(&o.recipient, "capture-recipient", "", "age recipient of the bodies that rules say to log; default: what the configuration says")
}

// args are the flags again, for the gateway.
func (o logOptions) args() []string {
	var out []string
	if o.keep != "" {
		out = append(out, "--audit-keep", o.keep)
	}
	if o.recipient != "" {
		out = append(out, "--capture-recipient", o.recipient)
	}
	return out
}

// apply puts the options in the place of what the configuration says, and
// checks what only the age library can.
func (o logOptions) apply(cfg *policyfile.Gateway) error {
	if o.keep != "" {
		seconds, err := readKeep("--audit-keep", o.keep)
		if err != nil {
			return err
		}
		cfg.Log.Keep = seconds
	}
	if o.recipient != "" {
		cfg.Log.Capture.Recipient = o.recipient
	}
	if r := cfg.Log.Capture.Recipient; r != "" {
		if _, err := capture.ParseRecipient(r); err != nil {
			return usage(hint(err, "age-keygen makes an identity, and prints its recipient: age1..."))
		}
	}
	return nil
}

func readKeep(flag, text string) (int64, error) {
	seconds, ok := policyfile.ParseKeep(text)
	if !ok {
		return 0, usage(hint(fmt.Errorf("%s %q is not a time to keep records, of a day or more", flag, text), "%s 90d", flag))
	}
	return seconds, nil
}

// openAudit opens the log for writing.
func openAudit(inst instance, cfg *policyfile.Gateway) (*audit.Log, error) {
	durability, err := audit.ParseDurability(string(cfg.Log.Durability))
	if err != nil {
		return nil, err
	}
	anchors, err := anchorsOf(inst, cfg)
	if err != nil {
		return nil, err
	}
	l, err := audit.Open(audit.Config{
		Dir: inst.auditDir(), KeyFile: inst.auditKey(), Now: time.Now, Durability: durability, Version: version(),
		Pack: true, Keep: time.Duration(cfg.Log.Keep) * time.Second, Anchors: anchors,
	})
	if err != nil {
		return nil, &noLogError{err}
	}
	return l, nil
}

// openWithoutLog is how long what was let through may go on while what becomes of
// it cannot be recorded. A disk that is full for a moment breaks no download.
const openWithoutLog = 5 * time.Second

// watchLog tells cut, once each time, that the log has not been ready for so
// long, until ctx ends.
func watchLog(ctx context.Context, ready func() error, cut chan<- struct{}) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for down := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if ready() == nil {
			down = 0
			continue
		}
		if down += time.Second; down != openWithoutLog {
			continue
		}
		select {
		case cut <- struct{}{}:
		case <-ctx.Done():
		}
	}
}

// anchorsOf makes the ways to the places where checkpoints are kept.
func anchorsOf(inst instance, cfg *policyfile.Gateway) ([]audit.AnchorTo, error) {
	var out []audit.AnchorTo
	for _, a := range cfg.Log.Anchors {
		switch {
		case a.File != "":
			out = append(out, audit.AnchorFile(a.File))
		case len(a.Command) > 0:
			out = append(out, anchorCommand(a.Command))
		default:
			way, err := dialConfig(inst, cfg)
			if err != nil {
				return nil, err
			}
			to, err := anchorURL(a.URL, way)
			if err != nil {
				return nil, fmt.Errorf("anchor %s: %w", a.URL, err)
			}
			out = append(out, to)
		}
	}
	return out, nil
}

// maxComplaint bounds what is told of what a command said.
const maxComplaint = 500

// anchorCommand gives each checkpoint to a command on its standard input. The
// command has no shell and no environment but PATH; exit code 0 means kept.
func anchorCommand(argv []string) audit.AnchorTo {
	return audit.AnchorTo{Name: "command " + argv[0], Keep: func(ctx context.Context, checkpoint []byte) error {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env, cmd.Dir = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}, "/"
		cmd.Stdin = bytes.NewReader(checkpoint)
		cmd.WaitDelay = time.Second // for what it started itself
		said, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("running %s: %w: %s", argv[0], err, said[:min(len(said), maxComplaint)])
		}
		return nil
	}}
}

// anchorURL posts each checkpoint to a URL, through the one door out; a status
// of 2xx means kept.
func anchorURL(url string, cfg dial.Config) (audit.AnchorTo, error) {
	r, err := doorRule(policyfile.Ask{URL: url})
	if err != nil {
		return audit.AnchorTo{}, err
	}
	r.ID, r.Methods = "anchor", []string{http.MethodPost}
	policy, err := rules.Compile(rules.Source{Name: "the log's anchor", Digest: "anchor", Rules: []rules.Rule{r}})
	if err != nil {
		return audit.AnchorTo{}, err
	}
	// A record of each would be news for the anchor, for ever: what fails is told
	// in a record of its own.
	d, err := newDoor(policy, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return audit.AnchorTo{}, err
	}
	return audit.AnchorTo{Name: url, Keep: func(ctx context.Context, checkpoint []byte) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(checkpoint))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "text/plain; charset=utf-8")
		resp, err := d.RoundTrip(req)
		if err != nil {
			return err
		}
		said, err := io.ReadAll(io.LimitReader(resp.Body, maxComplaint))
		err = errors.Join(err, resp.Body.Close())
		if resp.StatusCode < 200 || resp.StatusCode > 299 {
			err = errors.Join(fmt.Errorf("it answered %s: %s", resp.Status, strings.TrimSpace(string(said))), err)
		}
		return err
	}}, nil
}
