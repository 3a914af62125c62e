package main

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func newCA() *cobra.Command {
	c := &cobra.Command{
		Use:     "ca",
		Short:   "Show or export the installation's certificate authority",
		Example: "  sallyport ca show\n  sallyport ca export > ca.crt",
		Args:    exactArgs(0),
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	show := &cobra.Command{
		Use: "show", Short: "Say who it is and how long it holds", Args: exactArgs(0),
		Example: "  sallyport ca show\n  sallyport ca show -o json",
		RunE:    showCA,
	}
	addOutput(show)
	export := &cobra.Command{
		Use: "export", Short: "Print the certificate in PEM", Args: exactArgs(0),
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
	c.AddCommand(show, export)
	return c
}

func readCA(c *cobra.Command) ([]byte, *x509.Certificate, error) {
	inst, err := instanceOf(c)
	if err != nil {
		return nil, nil, err
	}
	text, err := os.ReadFile(inst.caCert())
	if err != nil {
		return nil, nil, hint(fmt.Errorf("reading the CA certificate: %w", err), "it is made at the first: sallyport up")
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, nil, errors.New("reading the CA certificate: " + inst.caCert() + " holds no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the CA certificate: %w", err)
	}
	return text, cert, nil
}

func showCA(c *cobra.Command, _ []string) error {
	asJSON, err := outputJSON(c)
	if err != nil {
		return err
	}
	_, cert, err := readCA(c)
	if err != nil {
		return err
	}
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(cert.Raw))
	if asJSON {
		return printJSON(c.OutOrStdout(), map[string]any{
			"subject": cert.Subject.String(), "fingerprint": sum, "not_before": cert.NotBefore, "not_after": cert.NotAfter,
		})
	}
	return printTable(c.OutOrStdout(), [][]string{
		{"subject", cert.Subject.String()},
		{"fingerprint", sum},
		{"from", cert.NotBefore.UTC().Format("2006-01-02")},
		{"to", cert.NotAfter.UTC().Format("2006-01-02")},
	})
}
