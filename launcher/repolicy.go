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
func (l *Launcher) Repolicy(ctx context.Context, cell string, p Policy) error {
	unlock, err := lockPath(ctx, l.policiesDir())
	if err != nil {
		return err
	}
	defer unlock()
	f, err := control.Read(l.cellsDir(), cell)
	if err != nil {
		return err
	}
	if f.Policy == p.Digest {
		return nil
	}
	if err := l.writePolicy(&p); err != nil {
		return err
	}
	next := *f
	next.Policy = p.Digest
	if err := next.Write(l.cellsDir(), l.cfg.Group); err != nil {
		return errors.Join(err, l.prunePolicies())
	}
	if err := l.cfg.Gateway.Reload(ctx, cell); err != nil {
		back := f.Write(l.cellsDir(), l.cfg.Group)
		if back == nil && !errors.As(err, new(*control.Error)) {
			// No answer is not a refusal: whatever it did, have it do what the file says.
			_ = l.cfg.Gateway.Reload(ctx, cell)
		}
		return errors.Join(fmt.Errorf("putting the policy in force: %w", err), back, l.prunePolicies())
	}
	return l.prunePolicies()
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
