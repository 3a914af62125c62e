package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"sallyport/audit/checkpoint"
	"sallyport/audit/query"
	"sallyport/audit/verify"
)

func newAuditVerify() *cobra.Command {
	var key, proof, bundle string
	var anchors []string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that nothing in the log was changed, added, left out, moved or cut off",
		Long: `Verify reads the whole log and checks it against the public key that signed it. Checkpoints
that were kept elsewhere (--anchor) show in addition that no old copy was put in its place; the
one beside the key (KEY.anchor for --key KEY.pub) is compared by itself.
With --proof it checks, without the log, what audit prove wrote about one record, and with
--bundle what audit export --bundle wrote about many; there --anchor names a checkpoint that the
bundle was made with.
Exit codes: 0 the log is good; 1 it is not, and the first bad record is named; 2 usage.`,
		Example: `  sallyport audit verify
  sallyport audit verify --anchor /mnt/elsewhere/checkpoint
  sallyport audit verify --dir ./copy --key ./audit.pub -o json
  sallyport audit verify --key ./audit.pub --proof ./proof
  sallyport audit verify --key ./audit.pub --bundle ./case.zip`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := apart(c, "proof", "one after the other: "+c.CommandPath()+" --proof FILE", "bundle", "anchor"); err != nil {
				return err
			}
			if proof != "" {
				return verifyProof(c, proof, key)
			}
			if bundle != "" {
				return verifyBundle(c, bundle, key, anchors)
			}
			return verifyLog(c, key, anchors)
		},
	}
	c.Flags().StringVar(&key, "key", "", "file with the public key; default: the instance's")
	c.Flags().StringVar(&proof, "proof", "", "file with a proof of one record, to be checked without the log")
	c.Flags().StringVar(&bundle, "bundle", "", "a bundle of records, to be checked without the log")
	c.Flags().StringArrayVar(&anchors, "anchor", nil, "file with a checkpoint that was kept elsewhere")
	addOutput(c)
	return c
}

// readKey reads the public key, the instance's if no file is named.
func readKey(c *cobra.Command, file string) (string, error) {
	if file == "" {
		inst, err := instanceOf(c)
		if err != nil {
			return "", err
		}
		file = inst.auditPublicKey()
	}
	text, err := readFile(file)
	key := strings.TrimSpace(string(text))
	if err == nil {
		_, err = note.NewVerifier(key)
	}
	if err != nil {
		return "", usage(hint(fmt.Errorf("reading the public key in %s: %w", file, err), "%s --key FILE", c.CommandPath()))
	}
	return key, nil
}

// checking reads what every command that checks signatures is told.
func checking(c *cobra.Command, keyFile string) (key string, asJSON bool, err error) {
	if asJSON, err = outputJSON(c); err != nil {
		return "", false, err
	}
	key, err = readKey(c, keyFile)
	return key, asJSON, err
}

// readAnchors reads checkpoints that were kept elsewhere. One that this key did
// not sign says nothing about the log, whatever else is wrong with it.
func readAnchors(files []string, key string) (verify.Options, error) {
	var o verify.Options
	v, err := note.NewVerifier(key)
	if err != nil {
		return o, err
	}
	for _, f := range files {
		text, err := readFile(f)
		if err == nil {
			_, err = checkpoint.Open(text, v)
		}
		if err != nil {
			return o, usage(hint(fmt.Errorf("reading the anchor in %s: %w", f, err), "an anchor is one checkpoint, signed with the key of this log"))
		}
		o.Anchors = append(o.Anchors, text)
	}
	return o, nil
}

func newAuditProve() *cobra.Command {
	var key string
	c := &cobra.Command{
		Use:   "prove ID",
		Short: "Print a proof that one record is in the log, for somebody who has nothing else of it",
		Long: `Prove prints the record's line, its path through the Merkle tree in the form of C2SP's tlog-proof,
and the newest signed checkpoint. Who has the public key checks it with sallyport audit verify
--proof, and needs nothing else of the log. ID is an id or a number.
The proof is checked in the same way before it is printed. Of the rest of the log nothing is
checked: that is sallyport audit verify. Only where what is stored makes no good proof, the whole
log is verified as that does, and the proof made out of all records if they are good.`,
		Example: `  sallyport audit prove 01JJX0000000000000000000F0 > proof
  sallyport audit verify --key ./audit.pub --proof ./proof`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			dir, _, err := auditDirOf(c)
			if err != nil {
				return err
			}
			text, asJSON, err := checking(c, key)
			if err != nil {
				return err
			}
			p, err := verify.Prove(dir, text, query.Spell("id", args[0]), verify.Options{Stop: stopOf(c), Find: numberIn(c, dir), Tell: tellWhole(c)})
			switch {
			case errors.Is(err, verify.ErrStopped), errors.Is(err, context.Canceled):
				return interrupted()
			case errors.Is(err, verify.ErrNotFound):
				return notWhole(c, dir, args[0], err)
			case errors.Is(err, verify.ErrNotCovered):
				return hint(err, "a checkpoint is signed every half second while the gateway runs: try again; else sallyport audit verify tells why")
			case err != nil:
				return hint(err, "sallyport audit verify")
			case asJSON:
				return printJSON(c.OutOrStdout(), proofOf(p))
			}
			_, err = c.OutOrStdout().Write(p.Marshal())
			return err
		},
	}
	c.Flags().StringVar(&key, "key", "", "file with the public key; default: the instance's")
	addOutput(c)
	return c
}

// numberIn finds a record by its id, with the help of an index if there is one.
func numberIn(c *cobra.Command, dir string) func(id string) (int64, error) {
	return func(id string) (int64, error) {
		for r, err := range recordsOf(c, dir, query.Where("id", id), nil) {
			if _, bad := errors.AsType[*query.LineError](err); bad {
				continue // it may be another
			}
			return int64(r.Seq), err
		}
		return 0, fmt.Errorf("%w: %s", verify.ErrNotFound, id)
	}
}

// tellWhole says why all of the log is verified, which takes its time, and what is
// wrong with its tree.
func tellWhole(c *cobra.Command) func(error) {
	return func(err error) {
		if bad, ok := errors.AsType[*verify.Problem](err); ok && bad.Fault == verify.BadTree {
			fmt.Fprintf(c.ErrOrStderr(), "sallyport: %s\n", query.Printable(err.Error()))
			return
		}
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: %s: the whole log is verified instead\n", query.Printable(err.Error()))
	}
}

// notWhole explains why a record was not found where an id has to be whole.
func notWhole(c *cobra.Command, dir, asked string, err error) error {
	begin, stopped := beginning(c, dir, "id", asked)
	switch {
	case stopped != nil:
		return stopped
	case begin != "" && begin != asked:
		return usage(hint(err, "an id has to be whole here: %s %s", c.CommandPath(), query.Printable(begin)))
	}
	if b := beginOf(c, dir); b.seq > 0 {
		err = fmt.Errorf("%w; %v", err, b)
	}
	return usage(hint(err, "sallyport audit query lists records, and sallyport audit verify tells whether any is missing; an id has to be whole here"))
}

// proofJSON is a proof for a program.
type proofJSON struct {
	OK         bool            `json:"ok"`
	Index      int64           `json:"index"`
	Record     json.RawMessage `json:"record"`
	Path       []string        `json:"path"`
	Checkpoint string          `json:"checkpoint"`
}

func proofOf(p *verify.Proof) proofJSON {
	out := proofJSON{true, p.Index, p.Record, []string{}, string(p.Checkpoint)}
	for _, h := range p.Path {
		out.Path = append(out.Path, h.String())
	}
	return out
}

// verifyProof checks a proof that audit prove wrote.
func verifyProof(c *cobra.Command, file, keyFile string) error {
	key, asJSON, err := checking(c, keyFile)
	if err != nil {
		return err
	}
	text, err := readFile(file)
	if err != nil {
		return usage(hint(fmt.Errorf("proof: %w", err), "%s --proof FILE", c.CommandPath())) // it was never looked at
	}
	p, err := verify.ParseProof(text)
	if err == nil {
		err = p.Check(key)
	}
	switch {
	case err != nil && asJSON:
		err = printJSON(c.OutOrStdout(), map[string]any{"ok": false, "problem": err.Error()})
		return errors.Join(err, &exitError{code: exitFailed})
	case err != nil:
		return hint(fmt.Errorf("%s proves nothing: %w", file, err), "ask for the proof again, and compare the keys")
	case asJSON:
		return printJSON(c.OutOrStdout(), proofOf(p))
	}
	fmt.Fprintf(c.OutOrStdout(), "audit verify: ok: record %d is in the log that was signed with this key:\n", p.Index)
	return printJSON(c.OutOrStdout(), json.RawMessage(p.Record))
}

// stopOf ends the check of a log at ^C.
func stopOf(c *cobra.Command) func() bool {
	return func() bool { return c.Context().Err() != nil }
}

func verifyLog(c *cobra.Command, keyFile string, anchorFiles []string) error {
	dir, _, none := auditDirOf(c)
	if none != nil && !errors.Is(none, errNoLog) {
		return none
	}
	key, asJSON, err := checking(c, keyFile)
	if err != nil {
		return errors.Join(none, err)
	}
	beside, err := besideKey(c, keyFile)
	if err != nil {
		return err
	}
	anchors, err := readAnchors(append(beside, anchorFiles...), key)
	if err != nil {
		return err
	}
	// An anchor knows that there was one, and so do its own checkpoints.
	if none != nil && len(anchors.Anchors) == 0 && !exists(filepath.Join(dir, "checkpoints")) {
		if dir, _ := c.Flags().GetString("dir"); dir != "" && !exists(dir) {
			return usage(none) // it was never looked at
		}
		return none
	}
	anchors.Stop = stopOf(c)
	r, err := verify.Verify(dir, key, anchors)
	if errors.Is(err, verify.ErrStopped) {
		return interrupted()
	}
	if err != nil && !asJSON && !exists(dir) {
		return hint(err, "%s is not there: if it never was the log's directory, name that with --dir; else compare with a copy", dir)
	}
	return reportVerify(c, r, err, asJSON)
}

// besideKey returns the file of the checkpoint that is kept beside the key, if
// there is one: nobody has to name it.
func besideKey(c *cobra.Command, keyFile string) ([]string, error) {
	inst, err := instanceOf(c)
	if err != nil {
		return nil, err
	}
	file := inst.auditKey() + ".anchor"
	if keyFile != "" {
		base, _ := strings.CutSuffix(keyFile, ".pub")
		file = base + ".anchor"
	}
	f, err := os.Open(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: not compared with %s, which is for root: an old copy of the log would not be seen; --anchor FILE\n", file)
		return nil, nil
	case err != nil:
		return nil, usage(fmt.Errorf("the checkpoint beside the key: %w", err))
	}
	return []string{file}, f.Close()
}

// reportVerify prints what was found; a log that is not good is exit code 1.
func reportVerify(c *cobra.Command, r verify.Report, err error, asJSON bool) error {
	var bad *verify.Problem
	if err != nil && !errors.As(err, &bad) {
		return err
	}
	if asJSON {
		out := struct {
			OK      bool            `json:"ok"`
			Problem *verify.Problem `json:"problem,omitempty"`
			Report  verify.Report   `json:"report"`
		}{bad == nil, bad, r}
		err = printJSON(c.OutOrStdout(), out)
		if err == nil && bad != nil {
			err = &exitError{code: exitFailed}
		}
		return err
	}
	if bad != nil {
		return hint(bad, "keep the directory as it is, and compare it with a copy")
	}
	for i, line := range wrap("audit verify: ok: "+query.Printable(r.String()), 96) {
		fmt.Fprintf(c.OutOrStdout(), "%s%s\n", [2]string{"", "    "}[min(i, 1)], line)
	}
	return nil
}
