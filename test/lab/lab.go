// Package lab is a small internet on one machine: the servers that a sandbox
// may reach, those that it must not, a resolver, and a metadata service that
// really listens on 169.254.169.254. The demo and the tests run against it.
//
// It lives in the network namespace of its caller and refuses one that has a
// way out, so that no packet of a test can reach a real address even if the
// product has a hole. Its addresses look public but belong to nobody here.
// Every server tells what it saw: a claim about the gateway is judged by that,
// never by a status code alone.
//
// It imports nothing of the product, and nothing of the product imports it.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// The names of the lab's sites.
const (
	APIName       = "api.acme.test"
	FilesName     = "files.acme.test"
	ForbiddenName = "collect.evil.test"
	InternalName  = "internal.corp.test"
)

// The lab's addresses. Those of 11.7.7.0/24 look public.
var (
	APIAddr       = netip.AddrFrom4([4]byte{11, 7, 7, 10})
	FilesAddr     = netip.AddrFrom4([4]byte{11, 7, 7, 20})
	ForbiddenAddr = netip.AddrFrom4([4]byte{11, 7, 7, 66})
	ResolverAddr  = netip.AddrFrom4([4]byte{11, 7, 7, 53})
	MetadataAddr  = netip.AddrFrom4([4]byte{169, 254, 169, 254})
	InternalAddr  = netip.AddrFrom4([4]byte{10, 77, 0, 5})
	LoopbackAddr  = netip.AddrFrom4([4]byte{127, 0, 0, 1})
)

// InternalPort is where the internal service listens, on the private and on
// the loopback address.
const InternalPort = 9443

// Config is what a lab needs.
type Config struct {
	// Dir is where it keeps its certificate, its secrets and its repository.
	Dir string
}

// Lab is a running lab.
type Lab struct {
	API       *Site // checks its token: see [Site] and api.go for what it serves
	Files     *Site // files and a git repository, for everybody
	Forbidden *Site // nobody may come here
	Metadata  *Site // the cloud's: credentials for whoever asks
	Internal  *Site // on a private address and on loopback
	Resolver  *Resolver

	CAFile    string // the authority of every certificate here, PEM
	Token     string // what the API wants to see: the real secret
	TokenFile string // the same in a file, mode 0600
	Repo      string // path of the git repository on Files, "" without git
}

// Start starts a lab in the present network namespace. It ends with ctx, or
// with [Lab.Close].
func Start(ctx context.Context, cfg Config) (l *Lab, err error) {
	if cfg.Dir == "" {
		return nil, errors.New("starting the lab: no directory")
	}
	if err := Prepare(); err != nil {
		return nil, fmt.Errorf("starting the lab: %w", err)
	}
	l = &Lab{
		Token: "lab_live_" + random(), CAFile: filepath.Join(cfg.Dir, "lab-ca.crt"),
		TokenFile: filepath.Join(cfg.Dir, "lab-token"),
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("starting the lab: %w", errors.Join(err, l.Close()))
			l = nil
		}
	}()
	if err := os.WriteFile(l.TokenFile, []byte(l.Token+"\n"), 0o600); err != nil {
		return l, err
	}
	ca, err := NewCA("Lab upstream CA")
	if err != nil {
		return l, err
	}
	if err := os.WriteFile(l.CAFile, ca.PEM, 0o644); err != nil {
		return l, err
	}
	if err := l.sites(cfg, ca); err != nil {
		return l, err
	}
	if l.Resolver, err = StartResolver(netip.AddrPortFrom(ResolverAddr, 53)); err != nil {
		return l, err
	}
	for name, addrs := range l.Hosts() {
		for _, a := range addrs {
			l.Resolver.Set(name, "A "+a.String())
		}
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	return l, nil
}

// sites starts the servers.
func (l *Lab) sites(cfg Config, ca *CA) error {
	repo, git, err := gitHandler(filepath.Join(cfg.Dir, "lab-git"))
	if err != nil {
		return err
	}
	l.Repo = repo
	l.API = newSite(APIName, APIAddr)
	l.Files = newSite(FilesName, FilesAddr)
	l.Forbidden = newSite(ForbiddenName, ForbiddenAddr)
	l.Metadata = newSite("metadata", MetadataAddr)
	l.Internal = newSite(InternalName, InternalAddr, LoopbackAddr)
	return errors.Join(
		l.API.ServeTLS(ca, 443, apiHandler(l.Token)),
		l.API.ServePlain(80, apiHandler(l.Token)),
		l.Files.ServeTLS(ca, 443, filesHandler(git)),
		l.Files.ServePlain(80, filesHandler(git)),
		l.Forbidden.ServeTLS(ca, 443, loot("forbidden site")),
		l.Forbidden.ServePlain(80, loot("forbidden site")),
		l.Forbidden.ServeGreeting(22, "SSH-2.0-forbidden\r\n"),
		l.Forbidden.serveUDP(53), l.Forbidden.serveUDP(443),
		l.Metadata.ServePlain(80, loot("metadata service")),
		l.Internal.ServeTLS(ca, InternalPort, loot("internal service")),
	)
}

// Hosts returns the address of every name, for a gateway that is to know them
// without asking the resolver.
func (l *Lab) Hosts() map[string][]netip.Addr {
	return map[string][]netip.Addr{
		APIName: {APIAddr}, FilesName: {FilesAddr}, ForbiddenName: {ForbiddenAddr}, InternalName: {InternalAddr},
	}
}

// Close ends every server.
func (l *Lab) Close() error {
	var errs []error
	for _, s := range []*Site{l.API, l.Files, l.Forbidden, l.Metadata, l.Internal} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if l.Resolver != nil {
		errs = append(errs, l.Resolver.Close())
	}
	return errors.Join(errs...)
}
