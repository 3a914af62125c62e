package main

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sallyport/certs"
)

func newCA() *cobra.Command {
	c := &cobra.Command{
		Use:     "ca",
		Short:   "Show, export or replace the installation's certificate authority",
		Example: "  sallyport ca show\n  sallyport ca export > ca.crt\n  sallyport ca rotate",
		Args:    oneOfCommands,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	show := &cobra.Command{
		Use: "show", Short: "Say who it is and how long it holds", Args: exactArgs(0),
		Example: "  sallyport ca show\n  sallyport ca show -o json",
		RunE:    showCA,
	}
	addOutput(show)
	export := &cobra.Command{
		Use: "export", Short: "Print in PEM what a client has to trust", Args: exactArgs(0),
		Example: "  sallyport ca export > ca.crt",
		RunE: func(c *cobra.Command, _ []string) error {
			text, _, err := readCA(c)
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	c.AddCommand(show, export, newRotateCA())
	return c
}

// readCA returns what is to be trusted: the root that signs and, during a
// rotation, the next.
func readCA(c *cobra.Command) (text []byte, roots []*x509.Certificate, err error) {
	inst, err := instanceOf(c)
	if err != nil {
		return nil, nil, err
	}
	if text, err = os.ReadFile(inst.caCert()); err != nil {
		return nil, nil, hint(fmt.Errorf("reading the CA certificate: %w", err), "it is made at the first: sallyport up")
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, fmt.Errorf("reading the CA certificate: %w", err)
		}
		roots = append(roots, cert)
	}
	if len(roots) == 0 {
		return nil, nil, errors.New("reading the CA certificate: " + inst.caCert() + " holds no PEM block")
	}
	return text, roots, nil
}

// rootOut is what ca show tells of a root.
type rootOut struct {
	Subject     string    `json:"subject"`
	Fingerprint string    `json:"fingerprint"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Next        bool      `json:"next,omitempty"` // it does not sign yet
}

func showCA(c *cobra.Command, _ []string) error {
	asJSON, err := outputJSON(c)
	if err != nil {
		return err
	}
	_, roots, err := readCA(c)
	if err != nil {
		return err
	}
	var list []rootOut
	var rows [][]string
	for i, r := range roots {
		o := rootOut{r.Subject.String(), certs.Fingerprint(r.Raw), r.NotBefore, r.NotAfter, i > 0}
		list = append(list, o)
		if o.Next {
			rows = append(rows, []string{"next", "it signs after another: sallyport ca rotate"})
		}
		rows = append(rows, []string{"subject", o.Subject}, []string{"fingerprint", o.Fingerprint},
			[]string{"from", o.NotBefore.UTC().Format(time.DateOnly)}, []string{"to", o.NotAfter.UTC().Format(time.DateOnly)})
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), list)
	}
	return printTable(c.OutOrStdout(), rows)
}
