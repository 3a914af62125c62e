package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Changes are waited out, but not for ever.
func TestChangesAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changes, fired := make(chan struct{}, 1), make(chan time.Duration, 10)
		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			settle(ctx, changes, func() { fired <- time.Since(began) })
		}()
		for range 3 { // a burst is one change
			changes <- struct{}{}
			<-time.After(quietTime / 2) // by the bubble's clock
		}
		if got := <-fired; got != quietTime+quietTime {
			t.Errorf("a burst of changes was looked at after %v", got)
		}
		began = time.Now()
		stop := time.After(10 * patience)
		for n := 0; n < 3; {
			select {
			case changes <- struct{}{}:
				<-time.After(quietTime / 2) // by the bubble's clock
			case got := <-fired:
				if n++; got > time.Duration(n)*(patience+quietTime) {
					t.Errorf("changes without an end were looked at after %v", got)
				}
			case <-stop:
				t.Fatal("changes without an end were not looked at")
			}
		}
		cancel()
		<-done
	})
}

// A name that leads through links depends on each of them.
func TestPlacesOfAPath(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "pol/..v1"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "pol/..v1/p.yaml"), nil, 0o644))
	must(os.Symlink("..v1", filepath.Join(dir, "pol/..data")))
	must(os.Symlink("..data/p.yaml", filepath.Join(dir, "pol/p.yaml")))
	must(os.Symlink(filepath.Join(dir, "pol"), filepath.Join(dir, "link")))
	must(os.Symlink("loop", filepath.Join(dir, "loop")))
	at := func(names ...string) (out []string) {
		for _, n := range names {
			out = append(out, filepath.Join(dir, n))
		}
		return out
	}
	for path, want := range map[string][]string{
		"pol/p.yaml":        at("pol/p.yaml", "pol/..data", "pol/..v1", "pol/..v1/p.yaml"),
		"link/p.yaml":       at("link", "pol/p.yaml", "pol/..data", "pol/..v1", "pol/..v1/p.yaml"),
		"pol/..v1/p.yaml":   at("pol/..v1", "pol/..v1/p.yaml"),
		"pol/missing.yaml":  at("pol", "pol/missing.yaml"),
		"pol/../pol/p.yaml": at("pol/p.yaml", "pol/..data", "pol/..v1", "pol/..v1/p.yaml"),
	} {
		if got := places(filepath.Join(dir, path)); !slices.Equal(got, want) {
			t.Errorf("places(%s) = %q, want %q", path, got, want)
		}
	}
	places(filepath.Join(dir, "loop/p.yaml")) // ends
}

// The watch tells of what matters, by links that are turned too, and of nothing else.
func TestWatchedFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	chmod := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) { // as an atomic writer does it
		t.Helper()
		tmp := filepath.Join(dir, "tmp")
		if err := os.Symlink(target, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"v1", "v2", "cells", "creds"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("v1/p.yaml")
	write("v2/p.yaml")
	link("v1", "data")
	link("data/p.yaml", "p.yaml")
	w, err := newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	w.follow([]string{filepath.Join(dir, "p.yaml"), filepath.Join(dir, "later.yaml")}, []string{filepath.Join(dir, "cells"), filepath.Join(dir, "creds")})
	if got := w.fault(); got != "ok" {
		t.Fatal(got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	changes, fresh, done := w.changes, make(chan struct{}, 1), make(chan error, 1)
	<-changes // what is watched from now on may have changed before
	go func() { done <- w.run(ctx, filepath.Join(dir, "cells"), fresh) }()
	for _, step := range []struct {
		name string
		do   func()
		told chan struct{}
	}{
		{"the file is written", func() { write("v1/p.yaml") }, changes},
		{"its mode is changed", func() { chmod("v1/p.yaml", 0o600) }, changes},
		{"that of its directory is", func() { chmod("v1", 0o700) }, changes},
		{"the link is turned", func() { link("v2", "data") }, changes},
		{"an include appears", func() { write("later.yaml") }, changes},
		{"a credential appears", func() { write("creds/c.yaml") }, changes},
		{"a cell appears", func() { write("cells/c.json") }, fresh},
	} {
		step.do()
		<-step.told
		for len(changes) > 0 { // a step may be several events
			<-changes
		}
	}
	// What nobody reads does not matter: of two events in a row only the second is told.
	write("other.txt")
	write("cells/d.json")
	<-fresh
	if len(changes) != 0 {
		t.Error("a file that nobody reads was told of")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
}
