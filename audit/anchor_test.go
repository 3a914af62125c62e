package audit_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/verify"
)

// anchor keeps what reaches it, and fails on cue.
type anchor struct {
	mu   sync.Mutex
	fail bool
	last []byte

	tries atomic.Int64
}

func (a *anchor) take(_ context.Context, msg []byte) error {
	a.tries.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail {
		return errors.New("no route")
	}
	a.last = bytes.Clone(msg)
	return nil
}

func (a *anchor) set(fail bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = fail
}

func (a *anchor) newest() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

func TestAnchorGetsCheckpointsAndTellsWhenBehind(t *testing.T) {
	var a anchor
	cfg := config(t)
	cfg.Interval, cfg.Anchors = time.Millisecond, []audit.AnchorTo{{Name: "test", Keep: a.take}}
	l := mustOpen(t, cfg)
	told := func(want string) func() bool {
		return func() bool {
			return slices.ContainsFunc(records(t, cfg.Dir), func(r audit.Record) bool {
				return r.Kind == audit.Anchor && strings.Contains(r.Error+string(r.Data), want)
			})
		}
	}
	eventually(t, func() bool { return l.Anchors()[0].Records == 1 && a.newest() != nil })
	if s := l.Anchors()[0]; s.Name != "test" || s.Kept == nil || s.Behind != nil || s.Error != "" {
		t.Errorf("Anchors tells %+v", s)
	}
	a.set(true)
	mustAppend(t, l, admit(1))
	eventually(t, told("no route"))
	eventually(t, func() bool { s := l.Anchors()[0]; return s.Behind != nil && s.Waiting > 0 })
	if s := l.Anchors()[0]; s.Error != "no route" || s.Kept == nil || s.Records != 1 {
		t.Errorf("Anchors tells %+v of one that is behind", s)
	}
	if err := l.Ready(); err != nil {
		t.Errorf("Ready while the anchor is behind: %v", err)
	}
	a.set(false)
	eventually(t, told(`"behind":false`))
	eventually(t, func() bool {
		s := l.Anchors()[0]
		return s.Behind == nil && s.Error == "" && s.Waiting == 0 && s.Records == l.Signed()
	})
	mustClose(t, l)
	r, err := verify.Verify(cfg.Dir, l.Verifier(), verify.Options{Anchors: [][]byte{a.newest()}})
	if err != nil || !r.Whole() || r.Anchors != 1 {
		t.Errorf("Verify against the anchor: %+v, %v", r, err)
	}
	msgs := 0
	for _, r := range records(t, cfg.Dir) {
		if r.Kind == audit.Anchor {
			msgs++
		}
	}
	if msgs != 2 {
		t.Errorf("%d anchor records, want one when it fell behind and one when it caught up", msgs)
	}
}

func TestCloseTellsThatTheAnchorIsBehind(t *testing.T) {
	a := anchor{fail: true}
	cfg := config(t)
	cfg.Anchors = []audit.AnchorTo{{Name: "test", Keep: a.take}}
	l := mustOpen(t, cfg)
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), "did not reach the anchor") {
		t.Errorf("Close = %v, want that the anchor is behind", err)
	}
	if r := mustVerify(t, cfg, l.Verifier()); !r.Whole() {
		t.Errorf("Verify: %v", r)
	}
}

func TestAnchorFile(t *testing.T) {
	path := filepath.Join(tempDir(t), "anchor")
	cfg := config(t)
	cfg.Anchors = []audit.AnchorTo{audit.AnchorFile(path)}
	l := mustOpen(t, cfg)
	mustAppend(t, l, admit(1))
	mustClose(t, l)
	msg, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := verify.Verify(cfg.Dir, l.Verifier(), verify.Options{Anchors: [][]byte{msg}}); err != nil || r.Covered != r.Records {
		t.Errorf("Verify = %+v, %v", r, err)
	}
	if err := audit.AnchorFile(filepath.Join(path, "below")).Keep(t.Context(), msg); err == nil {
		t.Error("AnchorFile below a file = nil, want an error")
	}
}

// TestAnchorIsTriedLessAndLessOften: an anchor that is away is not asked for
// every checkpoint, and does not hold up another.
func TestAnchorIsTriedLessAndLessOften(t *testing.T) {
	away, there := anchor{fail: true}, anchor{}
	cfg := config(t)
	cfg.Interval = time.Millisecond
	cfg.Anchors = []audit.AnchorTo{{Name: "away", Keep: away.take}, {Name: "there", Keep: there.take}}
	l := mustOpen(t, cfg)
	eventually(t, func() bool {
		mustAppend(t, l, admit(1))
		return there.tries.Load() >= 300
	})
	if n := away.tries.Load(); n < 2 || n > 30 { // the thirtieth pause is of a minute and more
		t.Errorf("an anchor that was away was tried %d times, another %d times", n, there.tries.Load())
	}
	away.set(false)
	mustClose(t, l)
	if away.newest() == nil || !bytes.Equal(away.newest(), there.newest()) {
		t.Error("the anchor that is back has not got what the other has")
	}
	if r, err := verify.Verify(cfg.Dir, l.Verifier(), verify.Options{Anchors: [][]byte{away.newest()}}); err != nil || !r.Whole() {
		t.Errorf("Verify against the anchor: %+v, %v", r, err)
	}
}
