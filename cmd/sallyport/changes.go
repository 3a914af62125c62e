package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
)

// change is what a person did to a credential, or to the certificate authority.
type change struct {
	Credential string    `json:"credential,omitempty"`
	Event      string    `json:"event,omitempty"`
	By         string    `json:"by"`
	UID        int       `json:"uid"`
	At         time.Time `json:"at,omitzero"`
}

// recordChange writes the record of a change; rec says of what.
func (g *gateway) recordChange(ctx context.Context, rec audit.Record, c change) error {
	rec.Event = c.Event
	c.Credential, c.Event = "", "" // they have fields of their own
	var err error
	if rec.Data, err = json.Marshal(c); err != nil {
		return err
	}
	if err := g.recent.Append(ctx, &rec); err != nil {
		return fmt.Errorf("recording that the change %q is made: %w", rec.Event, err)
	}
	return nil
}

// changes is where changes wait for the log: the gateway may be down, or unable to write.
func (i instance) changes() string { return i.state("changes") }

// tell has the change recorded, now or when the gateway can, and says which.
func (t *credentialTask) tell(ctx context.Context, event string) string {
	if t.custom() {
		return ""
	}
	now, who := time.Now().UTC(), asker()
	text, err := json.Marshal(change{t.name, event, who.User, who.UID, now})
	name := filepath.Join(t.inst.changes(), now.Format("20060102T150405.000000000-")+rand.Text()+".json")
	if err := errors.Join(err, os.MkdirAll(t.inst.changes(), 0o700), writeDurably(name, string(text))); err != nil {
		return "NOT RECORDED: " + err.Error()
	}
	if _, up := supervisorPID(t.inst); !up {
		return "recorded with the next: " + t.inst.typed("up")
	}
	if err := t.inst.tellChanges(ctx); err != nil {
		return "recorded when the gateway can: " + err.Error()
	}
	return "ok"
}

// tellChanges has all changes recorded that wait for it. One that was recorded just
// before this process was killed is recorded twice.
func (i instance) tellChanges(ctx context.Context) error {
	dir, err := os.Open(i.changes())
	if err != nil {
		return ignoreMissing(err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(i.changes(), "*.json")) // in order of time
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := callGateway(ctx, i, "/v1/changed", json.RawMessage(text), nil); err != nil {
			return err
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}
