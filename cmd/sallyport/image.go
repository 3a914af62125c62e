package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"sallyport/launcher/nerdctl"
)

func newImage() *cobra.Command {
	c := &cobra.Command{
		Use:     "image",
		Short:   "Load and list the images that sandboxes are made of",
		Long:    "Images live in the instance's own store. A sandbox never pulls: load an archive first.",
		Example: "  sallyport image load image.tar\n  sallyport image ls",
		Args:    oneOfCommands,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newImageLoad(), newImageList())
	return c
}

// imageEngine returns the engine of an instance that is up.
func imageEngine(c *cobra.Command) (*nerdctl.Engine, error) {
	inst, err := instanceOf(c)
	if err != nil {
		return nil, err
	}
	if err := mustRoot("image"); err != nil {
		return nil, err
	}
	if err := inst.mustBeUp(); err != nil {
		return nil, err
	}
	engine, err := inst.engine()
	if err != nil {
		return nil, hint(err, "make setup")
	}
	return engine, explainRun(inst, engine.Ready(c.Context()))
}

func newImageLoad() *cobra.Command {
	var unless string
	c := &cobra.Command{
		Use:   "load ARCHIVE",
		Short: "Load an archive made by docker save, or an OCI layout in a tar",
		Example: `  sallyport image load image.tar
  sallyport image load --if-missing sallyport/sandbox:latest sandbox.tar`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			engine, err := imageEngine(c)
			if err != nil {
				return err
			}
			if _, err := os.Stat(args[0]); err != nil {
				return usage(hint(fmt.Errorf("reading an archive: %w", err), "docker save IMAGE > image.tar; sallyport image load image.tar"))
			}
			if unless != "" {
				img, err := engine.Image(c.Context(), unless)
				if err == nil {
					fmt.Fprintf(c.OutOrStdout(), "%s is there: %s\n", unless, img.Digest)
					return nil
				}
				if !errors.Is(err, nerdctl.ErrNoImage) {
					return err
				}
			}
			fmt.Fprintf(c.ErrOrStderr(), "loading %s, some seconds\n", args[0])
			if err := engine.Load(c.Context(), args[0]); err != nil {
				return err
			}
			return listImages(c, engine)
		},
	}
	c.Flags().StringVar(&unless, "if-missing", "", "do nothing if this image is there")
	return c
}

func newImageList() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls",
		Short:   "List the images",
		Example: "  sallyport image ls\n  sallyport image ls -o json",
		Args:    exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			engine, err := imageEngine(c)
			if err != nil {
				return err
			}
			return listImages(c, engine)
		},
	}
	addOutput(c)
	return c
}

func listImages(c *cobra.Command, engine *nerdctl.Engine) error {
	asJSON := false
	if c.Flags().Lookup("output") != nil {
		var err error
		if asJSON, err = outputJSON(c); err != nil {
			return err
		}
	}
	names, err := engine.Images(c.Context())
	if err != nil {
		return err
	}
	type row struct {
		Name   string `json:"name"`
		Digest string `json:"digest"`
	}
	list := []row{}
	for _, n := range names {
		img, err := engine.Image(c.Context(), n)
		if err != nil {
			return err
		}
		list = append(list, row{n, img.Digest})
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), list)
	}
	rows := [][]string{{"IMAGE", "DIGEST"}}
	for _, r := range list {
		rows = append(rows, []string{r.Name, r.Digest})
	}
	return printTable(c.OutOrStdout(), rows)
}
