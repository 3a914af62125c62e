package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quietTime is for how long nothing has to change until what changed is
	// looked at: editors and archives write in several steps.
	quietTime = 100 * time.Millisecond
	// patience bounds the wait where changes do not end.
	patience = 500 * time.Millisecond
	// maxLinks is as many as the kernel follows (path_resolution(7)).
	maxLinks = 40
)

// watcher tells when something changes about a set of files. It watches
// directories, not files: a file that is replaced, or reached through a link
// that is turned (a ConfigMap's ..data), changes in its directory.
type watcher struct {
	notify  *fsnotify.Watcher
	changes chan struct{} // has one while something changed that was not looked at

	mu     sync.Mutex          // guards all below
	names  map[string]struct{} // paths that matter
	whole  []string            // directories of which every .yaml matters
	dirs   map[string]struct{} // that are watched
	open   map[string]struct{} // files that somebody writes to
	closed bool
	faults error
}

func newWatcher() (*watcher, error) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching files: %w", err)
	}
	return &watcher{notify: n, changes: make(chan struct{}, 1), names: map[string]struct{}{}, dirs: map[string]struct{}{}, open: map[string]struct{}{}}, nil
}

func (w *watcher) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.notify.Close()
}

// await tells changes once nobody has a file open for writing any more, of which
// no event comes. It returns at once.
func (w *watcher) await(file string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, waits := w.open[file]; waits || w.closed {
		return
	}
	w.open[file] = struct{}{}
	time.AfterFunc(quietTime, func() { w.lookAgain(file) })
}

func (w *watcher) lookAgain(file string) {
	w.mu.Lock()
	delete(w.open, file)
	w.mu.Unlock()
	if beingWritten(file) {
		w.await(file)
		return
	}
	tell(w.changes)
}

// follow watches files, whether they are there or not, and every credential file
// of some directories, in place of what was watched before. What is new among
// them counts as changed: it may have, between being read and being watched.
func (w *watcher) follow(files, whole []string) {
	names, want := map[string]struct{}{}, map[string]struct{}{}
	for _, file := range files {
		for _, p := range places(file) {
			names[p], want[filepath.Dir(p)] = struct{}{}, struct{}{}
		}
	}
	for _, dir := range whole {
		want[dir] = struct{}{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	if !within(names, w.names) || !within(want, w.dirs) {
		tell(w.changes)
	}
	for dir := range want {
		// Adding again what was removed and made anew is what mends the watch.
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("watching %s: %w", dir, err))
		}
	}
	for dir := range w.dirs {
		if _, keep := want[dir]; !keep {
			_ = w.notify.Remove(dir) // it may be gone
		}
	}
	w.names, w.whole, w.dirs, w.faults = names, whole, want, errors.Join(errs...)
}

// within reports whether every key of a is one of b.
func within(a, b map[string]struct{}) bool {
	for k := range a {
		if _, ok := b[k]; !ok {
			return false
		}
	}
	return true
}

// tell puts something into c unless there is something already.
func tell(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// fault says what cannot be watched, "ok" if everything is.
func (w *watcher) fault() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.faults == nil {
		return "ok"
	}
	return w.faults.Error()
}

// matters reports whether it matters that something changed under a name.
func (w *watcher) matters(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.names[name]; ok {
		return true
	}
	for _, dir := range w.whole {
		if filepath.Dir(name) == dir && strings.HasSuffix(name, ".yaml") {
			return true
		}
	}
	return false
}

var errWatchEnded = errors.New("the watch of files has ended")

// run tells changes when a file changes that matters, and fresh when there is a
// new cell in cells. Neither is waited for. It runs until ctx ends.
func (w *watcher) run(ctx context.Context, cells string, fresh chan<- struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.notify.Events:
			switch {
			case !ok:
				return errWatchEnded
			case filepath.Dir(e.Name) == cells:
				tell(fresh)
			case w.matters(e.Name):
				tell(w.changes)
			}
		case _, ok := <-w.notify.Errors:
			if !ok {
				return errWatchEnded
			}
			tell(w.changes) // events were lost: look at everything
		}
	}
}

// settle calls f when changes have been quiet for a while, or do not end, until
// ctx ends.
func settle(ctx context.Context, changes <-chan struct{}, f func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
		end := time.NewTimer(patience)
		for waiting := true; waiting; {
			quiet := time.NewTimer(quietTime)
			select {
			case <-ctx.Done():
				return
			case <-changes:
			case <-quiet.C:
				waiting = false
			case <-end.C:
				waiting = false
			}
			quiet.Stop()
		}
		end.Stop()
		f()
	}
}

// places returns every name on which it depends what a path leads to: the file,
// its directory, and each symbolic link on the way.
func places(name string) (out []string) {
	at, _ := walkLinks("/", filepath.Clean(name), func(p string) (string, error) {
		to, err := os.Readlink(p)
		if err != nil || len(out) == maxLinks {
			return "", nil //nolint:nilerr // what is no link, or not there yet, is a name by itself
		}
		out = append(out, p)
		return to, nil
	})
	if dir := filepath.Dir(at); dir != "/" {
		out = append(out, dir)
	}
	return append(out, at)
}

// walkLinks follows a path from a root, link by link, as a process whose root it
// is would, and returns what it leads to. link returns where a name on the way
// links to, "" for one that is no link; its error ends the walk.
func walkLinks(root, name string, link func(p string) (to string, err error)) (string, error) {
	at, rest := root, strings.Split(name, "/")
	for len(rest) > 0 {
		next := rest[0]
		rest = rest[1:]
		switch next {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		p := filepath.Join(at, next)
		to, err := link(p)
		switch {
		case err != nil:
			return "", err
		case to == "":
			at = p
			continue
		case filepath.IsAbs(to):
			at = root
		}
		rest = append(strings.Split(to, "/"), rest...)
	}
	return at, nil
}
