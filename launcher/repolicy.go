package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"

	"sallyport/control"
)

// Repolicy puts another policy in force for a run that goes on. The cell's file
// is the truth about it: it is written before the gateway is told, so that a
// gateway which starts anew in between comes up with the new policy, and written
// back if the gateway refuses. On an error the old policy stays in force. A cell
// that is gone is [io/fs.ErrNotExist].
//
// The gateway may take its time over a policy, and no other run waits for that;
// two calls for one cell are the caller's to keep apart.
func (l *Launcher) Repolicy(ctx context.Context, cell string, p Policy) error {
	before, err := l.exchange(ctx, cell, &p)
	if err != nil || before == nil {
		return err
	}
	refusal := l.cfg.Gateway.Reload(ctx, cell)
	// What was begun is brought to its end.
	unlock, err := lockPath(context.WithoutCancel(ctx), l.policiesDir())
	if err != nil {
		return errors.Join(refusal, err)
	}
	defer unlock()
	if refusal == nil {
		return l.prunePolicies()
	}
	return errors.Join(l.takeBack(ctx, before, p.Digest, refusal), l.prunePolicies())
}

// before is what a cell was under.
type before struct {
	file   *control.CellFile
	policy Policy
}

// exchange writes a policy and names it in a cell's file. It returns what was
// there before, nil if that is the same.
func (l *Launcher) exchange(ctx context.Context, cell string, p *Policy) (*before, error) {
	unlock, err := lockPath(ctx, l.policiesDir())
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := control.Read(l.cellsDir(), cell)
	if err != nil {
		return nil, err
	}
	if f.Policy == p.Digest {
		return nil, nil
	}
	old, err := os.ReadFile(l.policyPath(f.Policy))
	if err != nil {
		return nil, fmt.Errorf("keeping the policy in force: %w", err)
	}
	if err := l.writePolicy(p); err != nil {
		return nil, err
	}
	next := *f
	next.Policy = p.Digest
	if err := next.Write(l.cellsDir(), l.cfg.Group); err != nil {
		return nil, errors.Join(err, l.prunePolicies())
	}
	return &before{f, Policy{Digest: f.Policy, Source: old}}, nil
}

// takeBack undoes exchange, unless the run has ended meanwhile: nothing brings it
// back. The caller has the lock of the policies.
func (l *Launcher) takeBack(ctx context.Context, b *before, digest string, refusal error) error {
	is, err := control.Read(l.cellsDir(), b.file.Cell)
	if err != nil {
		return err
	}
	if is.Policy != digest {
		return fmt.Errorf("putting the policy in force: %w", refusal)
	}
	// Somebody else may have removed it since: no cell was under it.
	back := l.writePolicy(&b.policy)
	if back == nil {
		back = b.file.Write(l.cellsDir(), l.cfg.Group)
	}
	if back == nil && !errors.As(refusal, new(*control.Error)) {
		// No answer is not a refusal: whatever it did, have it do what the file says.
		_ = l.cfg.Gateway.Reload(ctx, b.file.Cell)
	}
	return errors.Join(fmt.Errorf("putting the policy in force: %w", refusal), back)
}

// writePolicy puts a policy where the gateway reads it, by its digest.
func (l *Launcher) writePolicy(p *Policy) error {
	path := l.policyPath(p.Digest)
	if err := writeFile(path, p.Source, 0o640); err != nil {
		return fmt.Errorf("writing the policy: %w", err)
	}
	if err := errors.Join(os.Chown(path, 0, l.cfg.Group), os.Chmod(path, 0o640)); err != nil {
		return fmt.Errorf("writing the policy: %w", err)
	}
	return nil
}
