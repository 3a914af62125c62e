package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ship brings checkpoints to the anchor.
func (l *Log) ship() {
	retry := time.NewTicker(l.cfg.Interval)
	defer retry.Stop()
	var behind time.Time // since when it fails
	for {
		if behind.IsZero() {
			select {
			case <-l.stop:
				return
			case <-l.fresh:
			}
		} else {
			select {
			case <-l.stop:
				return
			case <-retry.C:
			}
		}
		l.marks.mu.Lock()
		msg := l.marks.msg
		l.marks.mu.Unlock()
		err := l.cfg.Anchor(msg)
		switch {
		case err != nil && behind.IsZero():
			behind = l.cfg.Now()
			l.tellAnchor("a checkpoint did not reach the anchor: "+err.Error(), time.Time{})
		case err == nil && !behind.IsZero():
			l.tellAnchor("", behind)
			behind = time.Time{}
		}
	}
}

// tellAnchor records that the anchor fell behind, or is up to date again. If it
// cannot, the log has a fault that tells more.
func (l *Log) tellAnchor(text string, since time.Time) {
	rec := Record{Kind: Anchor, Error: text}
	if !since.IsZero() {
		rec.Data = mustJSON(map[string]time.Time{"behind_since": since.UTC()})
	}
	_ = l.write(&rec)
}

// AnchorFile returns a [Config.Anchor] that keeps the newest checkpoint in a
// file: on another file system, or a share that this machine may write to but
// whose history is kept. The file is replaced whole.
func AnchorFile(path string) func([]byte) error {
	return func(checkpoint []byte) error {
		tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
		if err != nil {
			return fmt.Errorf("writing the anchor: %w", err)
		}
		defer os.Remove(tmp.Name()) //nolint:errcheck // gone already once it is renamed
		_, err = tmp.Write(checkpoint)
		if err := errors.Join(err, tmp.Chmod(modeFile), tmp.Sync(), tmp.Close()); err != nil {
			return fmt.Errorf("writing the anchor: %w", err)
		}
		if err := os.Rename(tmp.Name(), path); err != nil {
			return fmt.Errorf("writing the anchor: %w", err)
		}
		return nil
	}
}
