package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport/control/durable"
	"sallyport/rules/policyfile"
)

// stage checks the configuration as root and puts copies where the daemons,
// which may read nothing else, find them. What is wrong with any file is said
// here, before anything is made.
func (s *supervisor) stage(o upOptions) error {
	if o.config == "" && exists(defaultConfig) {
		o.config = defaultConfig
	}
	cfg := &policyfile.Gateway{Log: policyfile.Log{Durability: policyfile.DurableProcess}}
	text := []byte("apiVersion: sallyport/v1\nkind: Gateway\n")
	if o.config != "" {
		var err error
		if text, err = readFile(o.config); err != nil {
			return usage(hint(err, "sallyport up --config FILE"))
		}
		if cfg, err = policyfile.ParseGateway(o.config, text); err != nil {
			return usage(err)
		}
	}
	if err := o.log.apply(cfg); err != nil {
		return err
	}
	s.logArgs = o.log.args()
	if err := s.put(s.inst.run("config.yaml"), text); err != nil {
		return err
	}
	if err := s.stageRoots(cfg.UpstreamCA); err != nil {
		return err
	}
	if err := s.stagePassword(cfg.Proxy); err != nil {
		return err
	}
	dir := o.creds
	if dir == "" {
		dir = cfg.Credentials
	}
	if dir == "" && exists(defaultCredentials) {
		dir = defaultCredentials
	}
	return errors.Join(s.stageCredentials(dir), s.stageFloor(o.floor), s.stageShipper(o))
}

// stageShipper checks what --ship names, and puts what goes with it where the
// shipper, and nobody else, finds it.
func (s *supervisor) stageShipper(o upOptions) error {
	place := s.inst.run("ship")
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	if len(o.ship) == 0 {
		return nil
	}
	var err error
	if s.shipAs, err = lookupUser(shipperUser); err != nil {
		return err
	}
	dirs := []dir{{place, 0o750, 0, s.shipAs.gid}, {s.inst.state("ship"), 0o700, s.shipAs.uid, s.shipAs.gid}}
	if err := makeDirs(dirs); err != nil {
		return err
	}
	for name, path := range o.shipFiles {
		if *path == "" {
			continue
		}
		data, err := readFile(*path)
		if err != nil {
			return usage(fmt.Errorf("--ship: %w", err))
		}
		if err := putFile(filepath.Join(place, name), data, s.shipAs.gid); err != nil {
			return err
		}
	}
	if _, err := loadIdentity(place); err != nil {
		return usage(hint(fmt.Errorf("--ship: %w", err), "sallyport up --help"))
	}
	return nil
}

// stageFloor puts the effective text of the floor where the gateway and every
// run read it. It stays what it is until the next start: nothing widens it meanwhile.
func (s *supervisor) stageFloor(path string) error {
	if path == "" && exists(defaultFloor) {
		path = defaultFloor
	}
	if path == "" {
		return errors.Join(ignoreMissing(os.Remove(s.inst.floor())), ignoreMissing(os.Remove(s.inst.floorName())))
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return usage(err)
	}
	creds, err := loadCredentials(s.inst.credentials())
	if err != nil {
		return err
	}
	p, err := readFloor(path, creds, &place{owner: asker().UID})
	if err != nil {
		return usage(hint(noFile(err), "sallyport up --floor FILE; to see what is wrong with one: sallyport policy lint FILE"))
	}
	return errors.Join(s.put(s.inst.floor(), p.Effective), s.put(s.inst.floorName(), []byte(path)))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// stageRoots joins the extra authorities into one file.
func (s *supervisor) stageRoots(files []string) error {
	var all bytes.Buffer
	for _, f := range files {
		pem, err := readFile(f)
		if err != nil {
			return usage(fmt.Errorf("upstream_ca: %w", err))
		}
		all.Write(append(bytes.TrimSpace(pem), '\n'))
	}
	path := s.inst.run("upstream-ca.pem")
	if all.Len() == 0 {
		return ignoreMissing(os.Remove(path))
	}
	return s.put(path, all.Bytes())
}

// stagedPassword holds the password for the upstream proxy, for the daemons alone.
const stagedPassword = "upstream-proxy-password"

// stagePassword copies the password for the upstream proxy: one line of a file
// that nobody but its owner can read.
func (s *supervisor) stagePassword(p *policyfile.UpstreamProxy) error {
	path := s.inst.run(stagedPassword)
	if p == nil || p.User == "" {
		return ignoreMissing(os.Remove(path))
	}
	info, err := os.Stat(p.PasswordFile)
	if err != nil {
		return usage(fmt.Errorf("upstream_proxy: %w", err))
	}
	if info.Mode().Perm()&0o077 != 0 {
		return usage(hint(fmt.Errorf("upstream_proxy: %s has mode %04o: others than its owner can reach it", p.PasswordFile, info.Mode().Perm()),
			"chmod 0400 %s", p.PasswordFile))
	}
	text, err := readFile(p.PasswordFile)
	if err != nil {
		return usage(fmt.Errorf("upstream_proxy: %w", err))
	}
	text = bytes.TrimRight(text, "\r\n")
	if len(text) == 0 || bytes.ContainsAny(text, "\r\n\x00") {
		return usage(fmt.Errorf("upstream_proxy: %s has to hold one line, the password", p.PasswordFile))
	}
	return s.put(path, text)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// stageCredentials copies the credential files, which hold no secret, in place
// of what was there. All are looked at before any is copied.
func (s *supervisor) stageCredentials(dir string) error {
	if dir != "" {
		var err error
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
	}
	files, err := readCredentialFiles(dir)
	if err != nil {
		return err
	}
	s.credentialDir = dir
	return errors.Join(s.putCredentials(files), writeDurably(s.inst.sourceDir(), dir))
}

// readCredentialFiles returns the text of the credential files of a directory, ""
// for none, by their names. Together they load.
func readCredentialFiles(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	if dir == "" {
		return files, nil
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, usage(errors.Join(err, fmt.Errorf("credentials: %s is not a directory", dir)))
	}
	if _, err := loadCredentials(dir); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	where := &place{owner: asker().UID}
	for _, path := range paths {
		if err := where.check(path); err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
		text, err := readFile(path)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(path)] = text
	}
	return files, nil
}

// putCredentials makes the directory that the daemons read hold just these files.
func (s *supervisor) putCredentials(files map[string][]byte) error {
	old, err := os.ReadDir(s.inst.credentials())
	if err != nil {
		return err
	}
	for _, e := range old {
		if _, keep := files[e.Name()]; keep {
			continue
		}
		if err := os.Remove(filepath.Join(s.inst.credentials(), e.Name())); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := s.put(filepath.Join(s.inst.credentials(), name), text); err != nil {
			return err
		}
	}
	return nil
}

// put writes a file that root owns and the daemons' group may read.
func (s *supervisor) put(path string, data []byte) error {
	return putFile(path, data, s.who.group)
}

// putFile writes a file whole or not at all, owned by root, readable by a group.
func putFile(path string, data []byte, gid int) error {
	return durable.Write(path, data, 0o640, durable.Owner{UID: 0, GID: gid})
}
