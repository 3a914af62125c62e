package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/audit/answer"
	"sallyport/audit/index"
	"sallyport/audit/query"
	"sallyport/rules/plural"
)

// indexPath returns where the index of a log is kept: in the cache of whoever
// asks, since the log's own directory is not to be written to; own tells that
// nobody else keeps anything there.
func indexPath(c *cobra.Command, dir string) (path string, own bool, err error) {
	if path, _ := c.Flags().GetString("index"); path != "" {
		return path, false, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", false, usage(hint(fmt.Errorf("nowhere to keep an index: %w", err), "%s --index FILE", c.CommandPath()))
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", false, err
	}
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(cache, "sallyport", "audit-"+hex.EncodeToString(sum[:8])+".db"), true, nil
}

// withIndex calls use with an index that is up to date.
func withIndex(c *cobra.Command, use func(*index.Index) error) error {
	dir, _, err := auditDirOf(c)
	if err != nil {
		return err
	}
	_, err = indexed(c, dir, use)
	return err
}

func indexed(c *cobra.Command, dir string, use func(*index.Index) error) (res index.Result, err error) {
	cfg := index.Config{Dir: dir, Waiting: func() {
		fmt.Fprintln(c.ErrOrStderr(), "sallyport: waiting for another command that is making or updating the index")
	}, Damaged: func() {
		fmt.Fprintln(c.ErrOrStderr(), "sallyport: the index is damaged: it is made anew out of the log")
	}}
	if cfg.Path, cfg.Own, err = indexPath(c, dir); err != nil {
		return res, err
	}
	x, err := index.Open(c.Context(), cfg)
	if err != nil {
		switch {
		case errors.Is(err, index.ErrForeign):
			err = usage(hint(err, "%s --index ANOTHER-FILE", c.CommandPath()))
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, index.ErrShared):
			err = hint(err, "%s --index FILE, in a directory that you may write to", c.CommandPath())
		}
		return res, explainFull(c, err)
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	out := &tally{w: c.OutOrStdout()}
	c.SetOut(out)
	res, err = answered(c, x, use)
	if !index.Damaged(err) {
		return res, explainNone(c, err)
	}
	if out.n > 0 { // a second answer would follow what is printed
		return res, hint(fmt.Errorf("the index is damaged: %w", err), "rm %s, and ask again: it is made anew out of the log", cfg.Path)
	}
	cfg.Damaged()
	if err := x.Anew(c.Context()); err != nil {
		return res, err
	}
	res, err = answered(c, x, use)
	res.Anew = true
	return res, explainNone(c, err)
}

// tally counts the octets that are written.
type tally struct {
	w io.Writer
	n int64
}

// Write implements [io.Writer].
func (o *tally) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	o.n += int64(n)
	return n, err
}

// answered brings an index up to date and uses it.
func answered(c *cobra.Command, x *index.Index, use func(*index.Index) error) (index.Result, error) {
	m := newMeter(c.ErrOrStderr(), time.Now)
	res, err := x.Update(c.Context(), m.show)
	m.end()
	if err != nil {
		if errors.Is(err, context.Canceled) {
			err = hint(err, "what was read stays: %s goes on from there", commandLine())
		}
		return res, explainFull(c, err)
	}
	for _, d := range res.Damaged {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: %s is damaged: its records from %d on are left out (line %d)\n", d.File, d.Seq, d.Line)
	}
	seen := notices{res.Holes, res.Bad - int64(len(res.Damaged))}
	seen.tell(c, "")
	if l := res.Later; l != nil {
		tellLater(c, l.Seq, l.Schema)
	}
	return res, use(x)
}

// explainFull says where an index can be that has no room.
func explainFull(c *cobra.Command, err error) error {
	if index.Full(err) {
		err = hint(err, "%s --index FILE, on a disk with room", c.CommandPath())
	}
	return err
}

// explainNone makes a usage error of a question about what is not there.
func explainNone(c *cobra.Command, err error) error {
	if several, ok := errors.AsType[*answer.AmbiguousError](err); ok {
		if c.Name() == "diff" {
			return usage(hint(err, "write more of it: %s", query.Printable(several.Found[0])))
		}
		return usage(hint(err, "write more of it: %s %s", c.CommandPath(), query.Printable(several.Found[0])))
	}
	if other, ok := errors.AsType[*answer.OtherError](err); ok {
		if other.Run != "" {
			return usage(hint(err, "sallyport audit timeline %s", query.Printable(other.Run)))
		}
		return usage(hint(err, "sallyport audit show %s tells of its run", query.Printable(other.Record)))
	}
	if errors.Is(err, index.ErrNone) {
		if dir, _, none := auditDirOf(c); none == nil {
			if b := beginOf(c, dir); b.seq > 0 {
				err = fmt.Errorf("%w; %v", err, b)
			}
		}
		return usage(hint(err, "sallyport audit query lists records, sallyport audit top --by run lists runs"))
	}
	return err
}

// answerCommand is a command that answers out of an index, as text or JSON.
func answerCommand[T any](c *cobra.Command, ask func(*cobra.Command, []string, *index.Index) (T, error), text func(io.Writer, T) error) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		asJSON, err := outputJSON(c)
		if err != nil {
			return err
		}
		return withIndex(c, func(x *index.Index) error {
			v, err := ask(c, args, x)
			if err != nil {
				return err
			}
			if !asJSON {
				return text(c.OutOrStdout(), v)
			}
			object, err := withHoles(v, x.Holes())
			if err != nil {
				return err
			}
			return printJSON(c.OutOrStdout(), object)
		})
	}
	addOutput(c)
	return c
}

// addSpan gives a command --since and --until.
func addSpan(c *cobra.Command, since string) {
	text := "from then on: 2h, 7d, a date, or a date and a time of day"
	if since == "" {
		text += "; default: the beginning"
	}
	c.Flags().String("since", since, text)
	c.Flags().String("until", "", "up to then; default: now")
}

// spanOf reads them.
func spanOf(c *cobra.Command) (answer.Span, error) {
	now := time.Now()
	s := answer.Span{From: time.Unix(0, 0), Until: now}
	for _, name := range []string{"since", "until"} {
		v, _ := c.Flags().GetString(name)
		if v == "" {
			continue
		}
		at, err := query.ParseTime(v, now)
		if err != nil {
			return s, usage(hint(fmt.Errorf("--%s: %w", name, err), "%s --%s 2h", c.CommandPath(), name))
		}
		if name == "since" {
			s.From = at
		} else {
			s.Until = at
		}
	}
	if s.From.Before(s.Until) {
		if dir, _, err := auditDirOf(c); err == nil && c.Flags().Changed("since") {
			tellBegin(c, dir, s.From)
		}
		return s, nil
	}
	if v, _ := c.Flags().GetString("until"); v == "" {
		return s, usage(hint(fmt.Errorf("--since %s is not in the past", s.From.Format(time.RFC3339)), "%s --since 2h", c.CommandPath()))
	}
	return s, usage(hint(fmt.Errorf("--since %s is not before --until %s", s.From.Format(time.RFC3339), s.Until.Format(time.RFC3339)),
		"%s --since %s --until %s", c.CommandPath(), s.Until.Add(-24*time.Hour).Format(time.RFC3339), s.Until.Format(time.RFC3339)))
}

// addSpans gives a command --since, --until, and --baseline.
func addSpans(c *cobra.Command, baseline string) {
	addSpan(c, "24h")
	text := "how far back before --since to compare with"
	if baseline == "" {
		text += "; default: all"
	}
	c.Flags().String("baseline", baseline, text)
}

// spansOf reads a span and what it is compared with.
func spansOf(c *cobra.Command) (s, base answer.Span, err error) {
	if s, err = spanOf(c); err != nil {
		return s, base, err
	}
	base = answer.Span{From: time.Unix(0, 0), Until: s.From}
	v, _ := c.Flags().GetString("baseline")
	if v == "" {
		return s, base, nil
	}
	if base.From, err = query.ParseTime(v, s.From); err != nil {
		return s, base, usage(hint(fmt.Errorf("--baseline: %w", err), "%s --baseline 30d", c.CommandPath()))
	}
	return s, base, nil
}

func newAuditIndex() *cobra.Command {
	c := &cobra.Command{
		Use:   "index",
		Short: "Bring the index of the log up to date",
		Long: `Index reads what was added to the log since the last time into a SQLite file, which the other
commands ask. They do so by themselves; this one is for doing it ahead. The file can be deleted
at any time: it is made again out of the log. It holds what the log holds, so keep it as private.`,
		Example: "  sallyport audit index\n  sallyport audit index --dir ./copy --index ./copy.db",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			dir, _, err := auditDirOf(c)
			if err != nil {
				return err
			}
			path := ""
			res, err := indexed(c, dir, func(x *index.Index) error {
				path = x.Path()
				return nil
			})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), struct {
					Path string `json:"path"`
					index.Result
				}{path, res})
			}
			again := ""
			if res.Anew {
				again = ", after beginning anew"
			}
			fmt.Fprintf(c.OutOrStdout(), "audit index: %s added%s: %s\n", plural.Count(res.Added, "record"), again, path)
			return nil
		},
	}
	addOutput(c)
	return c
}
