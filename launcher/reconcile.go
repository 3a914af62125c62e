package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sallyport/audit"
)

// Report is what Reconcile found.
type Report struct {
	Live    []string `json:"live"`    // cells of launchers at work
	Removed []string `json:"removed"` // cells of dead ones
}

// Reconcile removes all that launchers have left which are not there any more,
// and records the end of their runs. Cells of living launchers are not touched,
// nor kept waiting. It may be repeated, and repeats what it could not do: a launcher that
// was killed while it started a process counts as living until that has its own program.
func (l *Launcher) Reconcile(ctx context.Context) (Report, error) {
	var report Report
	// Listed before any lock is tried: a launcher has its lock before it makes
	// anything, so what is listed and not locked is dead, or gone meanwhile.
	ids, err := l.traces(ctx)
	errs := []error{err}
	for _, id := range ids {
		lock, err := l.lockCell(id)
		if errors.Is(err, errLive) {
			report.Live = append(report.Live, id)
			continue
		}
		if err == nil {
			err = l.bury(ctx, id, lock)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("removing what is left of cell %s: %w", id, err))
			continue
		}
		report.Removed = append(report.Removed, id)
	}
	errs = append(errs, l.sweep(ctx))
	if err := errors.Join(errs...); err != nil {
		return report, fmt.Errorf("reconciling: %w", err)
	}
	return report, nil
}

// traces lists every cell of which there is anything.
func (l *Launcher) traces(ctx context.Context) ([]string, error) {
	ids, err := l.journals()
	errs := []error{err}
	cells, err := l.cfg.Network.Cells(ctx)
	ids, errs = append(ids, cells...), append(errs, err)
	found, err := l.cfg.Engine.List(ctx)
	errs = append(errs, err)
	for _, f := range found {
		ids = append(ids, f.Cell)
	}
	for _, dir := range []string{l.cellsDir(), l.runsDir()} {
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, e := range entries {
			ids = append(ids, strings.TrimSuffix(e.Name(), ".json")) //nolint:forbidigo // a file's name
		}
	}
	ids = append(ids, groupsOf(l.cfg.Instance)...)
	ids = slices.DeleteFunc(ids, func(id string) bool { return !cellID.MatchString(id) })
	slices.Sort(ids)
	return slices.Compact(ids), errors.Join(errs...)
}

// bury undoes, in the order of a run's own undoing, every step that a dead
// launcher may have taken. The journal goes last, and only if all else has.
func (l *Launcher) bury(ctx context.Context, id string, lock *os.File) error {
	j, err := l.readJournal(id)
	if err != nil {
		j = &journal{Cell: id} // it died before the journal, or it is none of ours: the id is enough
	}
	var denied Denials // asked before the run is detached
	if j.Started {
		denied = l.denials(ctx, j.Run)
	}
	var exported error
	if j.Export != "" && filepath.Base(j.Export) == ".sallyport-"+id {
		exported = os.RemoveAll(j.Export)
	}
	errs := []error{
		exported,
		l.cfg.Engine.RemoveCell(ctx, id, id+lookSuffix, filepath.Join(l.runDir(id), "cid"+lookSuffix)),
		l.cfg.Engine.RemoveCell(ctx, id, id, filepath.Join(l.runDir(id), "cid")),
		removeCgroups(l.cgroup(id)),
		l.tellDetached(ctx, id),
		l.removeCellFile(ctx, id),
		l.removeRunDir(id),
	}
	if b, err := l.cfg.Network.Counters(ctx, id); err == nil && j.Started && Bypass(b) != (Bypass{}) {
		_, err := l.record(ctx, audit.Bypass, j, Bypass(b))
		errs = append(errs, err)
	}
	errs = append(errs, l.cfg.Network.Remove(ctx, id))
	if j.Started {
		_, err := l.record(ctx, audit.RunEnd, j, Ending{
			Exit: 125, Cause: Died, Text: "launcher died in step " + j.Step,
			Denied: denied.Count, Uncounted: denied.More, Destroyed: errors.Join(errs...) == nil,
		})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, lock.Close())
	}
	return l.forget(id, lock)
}

// tellDetached tells the daemons, if they are there. If they are not they will
// read the cells' files when they start, and this one's is gone by then.
func (l *Launcher) tellDetached(ctx context.Context, id string) error {
	if l.cfg.Gateway.Ready(ctx) != nil {
		return nil
	}
	return errors.Join(l.cfg.Gateway.Detach(ctx, id), l.cfg.Broker.Revoke(ctx, id))
}

// sweep removes files that no cell's id leads to, while no launcher is at work
// and none can begin.
func (l *Launcher) sweep(ctx context.Context) error {
	unlock, err := lockPath(ctx, l.journalDir())
	if err != nil {
		return err
	}
	defer unlock()
	ids, err := l.journals()
	if err != nil || len(ids) > 0 {
		return err
	}
	errs := []error{l.cfg.Engine.SweepAll(ctx)}
	for _, dir := range []string{l.cellsDir(), l.policiesDir(), l.journalDir(), filepath.Join(l.imagesDir(), "*")} {
		for _, pattern := range []string{".new-*", "*.new"} {
			paths, err := filepath.Glob(filepath.Join(dir, pattern))
			errs = append(errs, err)
			for _, path := range paths {
				errs = append(errs, os.Remove(path))
			}
		}
	}
	return errors.Join(errs...)
}
