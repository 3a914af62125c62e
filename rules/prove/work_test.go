package prove_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"sallyport/rules"
	"sallyport/rules/prove"
)

// tangled are rules whose proofs take very long, each near its bound.
func tangled(n int) (list []rules.Rule) {
	for i := range n {
		list = append(list, allow(rules.Rule{
			ID: fmt.Sprintf("r%d", i), Hosts: hosts("api.test"), Methods: []string{"GET"},
			Paths: paths("/**/a/**/b/**/c/**/a/**/x", "/**/b/**/a/**/c/**/y", fmt.Sprintf("/**/c/**/a/**/b/**/z%d", i)),
		}))
	}
	return append(list, rules.Rule{ID: "no", Hosts: hosts("api.test"), Paths: paths("/**/a/**/a/**/b/**/c", "/**/b/**/b/**/a/**")})
}

// What one statement costs is bounded over all rules, and ends when it is to end.
func TestProofsEnd(t *testing.T) {
	p := compiled(t, tangled(400)...)
	never := prove.Statement{Paths: paths("/**/a/**/b/**/c/**/q")}
	work := prove.NewWork(nil)
	had := work.Left
	e, err := prove.Check(p, never, work)
	if spent := had - work.Left; e != nil || err == nil || !strings.Contains(err.Error(), rules.ErrTooManyPaths.Error()) || spent > had/4 {
		t.Errorf("got %v, %v after %d of %d steps", e, err, spent, had)
	}
	over := errors.New("over")
	if _, err := prove.Check(p, never, prove.NewWork(func() error { return over })); !errors.Is(err, over) {
		t.Errorf("a proof that is to end: %v", err)
	}
	if _, err := prove.Compare(p, compiled(t, tangled(399)...), func() error { return over }); !errors.Is(err, over) {
		t.Errorf("a comparison that is to end: %v", err)
	}
	// What has an answer has it still.
	if e, err := prove.Check(compiled(t, tangled(0)...), never, prove.NewWork(nil)); e != nil || err != nil {
		t.Errorf("without allow rules: %v, %v", e, err)
	}
}
