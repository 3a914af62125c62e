package main

import "github.com/spf13/cobra"

func newAudit() *cobra.Command { return &cobra.Command{Use: "audit"} }
func newEnv() *cobra.Command   { return &cobra.Command{Use: "env"} }
