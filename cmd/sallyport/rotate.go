package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/certs"
)

type (
	caIn struct {
		Rotate bool // go one step on
		Now    bool // also if a sandbox will not trust what signs then
		By     string
		UID    int
	}
	caOut struct {
		Certificate string   `json:"certificate"` // PEM of every root to trust
		Signs       string   `json:"signs"`       // fingerprint
		Next        string   `json:"next,omitempty"`
		Waiting     []string `json:"waiting,omitempty"` // cells that do not trust the next one
		Prepared    bool     `json:"prepared,omitempty"`
		Switched    bool     `json:"switched,omitempty"`
	}
)

// rotateCA tells of the CA, after it has gone a step on where it is asked to:
// without a next root it makes one; with one it switches, once no sandbox is
// left that would not trust it.
func (g *gateway) rotateCA(ctx context.Context, in caIn) (caOut, error) {
	roots := g.ca.Roots()
	var out caOut
	switch {
	case !in.Rotate:
	case len(roots) == 1:
		if err := g.recordChange(ctx, audit.Record{Kind: audit.CARotate}, change{Event: "prepare", By: in.By, UID: in.UID}); err != nil {
			return caOut{}, err
		}
		if err := g.ca.Prepare(); err != nil {
			return caOut{}, err
		}
		out.Prepared = true
		g.log.Info("a next CA is ready")
	case in.Now || len(g.distrust(certs.Fingerprint(roots[1].Raw))) == 0:
		if err := g.recordChange(ctx, audit.Record{Kind: audit.CARotate}, change{Event: "switch", By: in.By, UID: in.UID}); err != nil {
			return caOut{}, err
		}
		if err := g.ca.Switch(); err != nil {
			return caOut{}, err
		}
		out.Switched = true
		g.log.Info("the next CA signs")
	}
	roots = g.ca.Roots()
	out.Certificate, out.Signs = string(g.ca.Certificate()), certs.Fingerprint(roots[0].Raw)
	if len(roots) > 1 {
		out.Next = certs.Fingerprint(roots[1].Raw)
		out.Waiting = g.distrust(out.Next)
	}
	return out, nil
}

// distrust lists the cells whose sandboxes were not given a root.
func (g *gateway) distrust(fingerprint string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var cells []string
	for cell, f := range g.files {
		if !slices.Contains(f.Trusts, fingerprint) {
			cells = append(cells, cell)
		}
	}
	slices.Sort(cells)
	return cells
}

func newRotateCA() *cobra.Command {
	var now bool
	c := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the certificate authority, in two steps with an overlap",
		Long: `The first call makes the next authority: sandboxes that are started from then on trust
both, and the old one goes on signing. A later call, when no sandbox is left that was
started before, lets the next one sign and forgets the old one.`,
		Example: "  sallyport ca rotate\n  sallyport ca rotate --now    # sandboxes that run now will distrust the gateway",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			inst, asJSON, err := rootCommand(c)
			if err != nil {
				return err
			}
			out, err := rotate(c.Context(), inst, caIn{Rotate: true, Now: now, By: asker().User, UID: asker().UID})
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c.OutOrStdout(), out)
			} else {
				err = out.print(c.OutOrStdout(), inst)
			}
			return errors.Join(err, out.unfinished(inst))
		},
	}
	c.Flags().BoolVar(&now, "now", false, "switch also while sandboxes run that do not trust the next authority")
	addOutput(c)
	return c
}

// rotate goes a step on and publishes what is to be trusted from now on. With
// --now both steps are one.
func rotate(ctx context.Context, inst instance, in caIn) (caOut, error) {
	var out caOut
	if err := inst.mustBeUp(); err != nil {
		return out, err
	}
	who, err := lookupAccounts()
	if err != nil {
		return out, err
	}
	if err := callGateway(ctx, inst, "/v1/ca", in, &out); err != nil {
		return out, err
	}
	if in.Now && !out.Switched {
		if err := callGateway(ctx, inst, "/v1/ca", in, &out); err != nil {
			return out, err
		}
	}
	return out, publish(ctx, inst, who.group)
}

func (o caOut) print(w io.Writer, inst instance) error {
	var err error
	switch {
	case o.Switched:
		_, err = fmt.Fprintf(w, "the next CA signs: %s\nsandboxes that are started from now on trust it alone\n", o.Signs)
	case o.Prepared:
		_, err = fmt.Fprintf(w, "the next CA is ready: %s\nsandboxes that are started from now on trust it as well; when those that run now have ended: %s\n",
			o.Next, inst.typed("ca rotate"))
	}
	return err
}

// unfinished is the error of a call that was to switch and could not.
func (o caOut) unfinished(inst instance) error {
	if o.Switched || o.Prepared {
		return nil
	}
	return hint(fmt.Errorf("not switched: sandboxes that trust the old CA only: %s", strings.Join(o.Waiting, ", ")),
		"when they have ended (%s), again: %s", inst.typed("ps"), inst.typed("ca rotate"))
}
