package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"sallyport/audit"
	"sallyport/control"
	"sallyport/proxy"
)

// What the launcher and the commands ask of the gateway, each a POST of JSON.
type (
	cellIn    struct{ Cell string }
	empty     struct{}
	denialsIn struct {
		Run  string
		Last int // at most
	}
	denialsOut struct {
		Count   uint64         `json:"count"`
		More    bool           `json:"more,omitempty"` // there may have been more, which could not be recorded
		Denials []proxy.Denied `json:"denials"`
	}
	statusOut struct {
		Version string    `json:"version"`
		PID     int       `json:"pid"`
		Since   time.Time `json:"since"`
		Cells   []cellOut `json:"cells,omitempty"`
		Records uint64    `json:"records"`
		Ready   string    `json:"ready"`   // "ok" or what is wrong
		LogKey  string    `json:"log_key"` // public, of the log's checkpoints
		Signed  uint64    `json:"signed"`  // records of the log that a checkpoint covers: all, but for the last half second's

		Anchors []audit.AnchorState `json:"anchors,omitempty"`
	}
	cellOut struct {
		Cell    string    `json:"cell"`
		Run     string    `json:"run"`
		Address string    `json:"address"`
		Policy  string    `json:"policy"`
		Digest  string    `json:"digest"`
		Denials uint64    `json:"denials"`
		Since   time.Time `json:"since"`
	}
)

// launcherKinds are the records that root may write, launcher and supervisor: what only they know.
// Everything else is recorded by who decided it.
var launcherKinds = []audit.Kind{audit.RunStart, audit.RunEnd, audit.Bypass, audit.PolicyRefuse}

// root is the only peer of the gateway's control socket.
var rootOnly = []uint32{0}

// shipperOnly is the shipper's user, if there is one.
func shipperOnly() []uint32 {
	a, err := lookupUser(shipperUser)
	if err != nil {
		return nil // nobody may
	}
	return []uint32{uint32(a.uid)}
}

func (g *gateway) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/attach", control.Handle(rootOnly, func(ctx context.Context, in cellIn) (empty, error) {
		f, err := control.Read(g.inst.cells(), in.Cell)
		if err != nil {
			return empty{}, err
		}
		rec := audit.Record{Kind: audit.CellUp, Cell: f.Cell, Run: f.Run, Policy: f.Policy}
		if err := g.recent.Append(ctx, &rec); err != nil {
			return empty{}, fmt.Errorf("recording that cell %s is attached: %w", f.Cell, err)
		}
		return empty{}, g.attachFile(ctx, f)
	}))
	mux.Handle("POST /v1/reload", control.Handle(rootOnly, func(ctx context.Context, in cellIn) (empty, error) {
		f, err := control.Read(g.inst.cells(), in.Cell)
		if err != nil {
			return empty{}, err
		}
		if err := g.reload(ctx, f); err != nil {
			return empty{}, &control.Error{Status: http.StatusConflict, Text: err.Error()}
		}
		return empty{}, nil
	}))
	mux.Handle("POST /v1/access", control.Handle(rootOnly, g.listAccess))
	mux.Handle("POST /v1/access/decide", control.Handle(rootOnly, g.decideAccess))
	mux.Handle("POST /v1/credentials", control.Handle(rootOnly, func(context.Context, empty) (empty, error) {
		return empty{}, g.reloadCredentials()
	}))
	mux.Handle("POST /v1/detach", control.Handle(rootOnly, func(ctx context.Context, in cellIn) (empty, error) {
		g.detach(ctx, in.Cell)
		return empty{}, nil
	}))
	mux.Handle("POST /v1/record", control.Handle(rootOnly, func(ctx context.Context, rec audit.Record) (empty, error) {
		if !slices.Contains(launcherKinds, rec.Kind) {
			return empty{}, &control.Error{Status: http.StatusForbidden, Text: fmt.Sprintf("a launcher may not write records of kind %q", rec.Kind)}
		}
		rec.Time = time.Time{} // the log's own: what no checkpoint covers yet must be of one moment
		return empty{}, g.recent.Append(ctx, &rec)
	}))
	mux.Handle("POST /v1/retain", control.Handle(rootOnly, func(_ context.Context, in retainIn) (audit.Removed, error) {
		keep := time.Duration(in.Keep) * time.Second
		out, err := g.records.Retain(keep)
		return out, errors.Join(err, g.pruneBodies(keep))
	}))
	mux.Handle("POST /v1/ship", control.Handle(shipperOnly(), func(ctx context.Context, rec audit.Record) (empty, error) {
		// It chooses nothing but what it tells of collectors.
		rec = audit.Record{Kind: audit.Ship, Error: rec.Error, Data: rec.Data}
		return empty{}, g.recent.Append(ctx, &rec)
	}))
	mux.Handle("POST /v1/denials", control.Handle(rootOnly, func(_ context.Context, in denialsIn) (denialsOut, error) {
		return g.refused(in.Run, in.Last)
	}))
	mux.Handle("POST /v1/status", control.Handle(rootOnly, func(context.Context, empty) (statusOut, error) {
		return g.status(), nil
	}))
	mux.Handle("POST /v1/ca", control.Handle(rootOnly, func(ctx context.Context, in caIn) (caOut, error) {
		return g.rotateCA(ctx, in)
	}))
	mux.Handle("POST /v1/changed", control.Handle(rootOnly, func(ctx context.Context, c change) (empty, error) {
		return empty{}, g.recordChange(ctx, audit.Record{Kind: audit.CredentialChange, Credential: c.Credential}, c)
	}))
	mux.Handle("POST /v1/try", control.Handle(rootOnly, g.try))
	return mux
}

// detach takes a cell out of force. From here on its address is nobody's.
func (g *gateway) detach(ctx context.Context, cell string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id, attached := g.table.Identity(cell)
	g.table.Detach(cell)
	g.broker.Detach(cell)
	g.dialer.Forget(cell)
	g.recent.forget(id.Run)
	if attached {
		rec := audit.Record{Kind: audit.CellDown, Cell: cell, Run: id.Run, Policy: id.Policy.Digest()}
		if err := g.recent.Append(ctx, &rec); err != nil { // it is detached all the same
			g.log.Error("recording that a cell is detached", "cell", cell, "cause", err)
		}
	}
	delete(g.files, cell)
	delete(g.coming, cell)
	delete(g.turns, cell)
	g.gate.Forget(id.Run)
	g.access.Forget(id.Run)
	if err := g.names.Forget(cell); err != nil {
		g.log.Error("forgetting a cell's names", "cell", cell, "cause", err)
	}
}

// callGateway calls the gateway's control socket and says what to do if nobody answers.
func callGateway(ctx context.Context, inst instance, op string, in, out any) error {
	c := control.NewClient(inst.gatewaySocket())
	defer c.Close()
	return explainCall(inst, c.Call(ctx, op, in, out))
}

// explainCall adds what to type when a daemon is not there.
func explainCall(inst instance, err error) error {
	var refusal *control.Error
	if err == nil || errors.As(err, &refusal) {
		return err
	}
	return hint(err, "is it running? in another terminal: %s", inst.typed("up"))
}
