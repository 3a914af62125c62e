package rules

// Scope is who said a rule. The zero Scope is the policy's own.
type Scope uint8

// The scopes.
//
//   - FloorScope is the organisation's: deny rules and limits that nothing widens.
//   - RunScope narrows the policy for one run. Its deny rules deny. If it has
//     allow rules, or no rule at all, what the policy admits has to be admitted
//     by one of them too.
//   - ApprovalScope holds the allow rules that people gave at run time; they
//     expire, and widen what neither the floor nor any deny rule takes away.
const (
	PolicyScope Scope = iota
	FloorScope
	RunScope
	ApprovalScope
)

// String returns the word used in records and files.
func (s Scope) String() string {
	switch s {
	case FloorScope:
		return "floor"
	case RunScope:
		return "run"
	case ApprovalScope:
		return "approval"
	default:
		return scopePolicy
	}
}

// order is the order in which the scopes speak: the outermost first.
func (s Scope) order() int {
	switch s {
	case FloorScope:
		return 0
	case PolicyScope:
		return 1
	case RunScope:
		return 2
	default:
		return 3
	}
}

// checkScope refuses what a scope cannot say.
func (c *compiler) checkScope(r *Rule) {
	allow := r.Action == AllowAction
	if (r.Scope == FloorScope || r.Scope == RunScope) && r.Observe {
		c.fault("mode", "a rule of the %s is enforced", r.Scope)
	}
	switch r.Scope {
	case PolicyScope:
	case FloorScope:
		if allow {
			c.fault("match", "a floor denies and limits; it allows nothing")
		}
	case RunScope:
		c.checkRunScope(r)
	case ApprovalScope:
		if !allow || r.Expires == 0 || r.Credential != "" || r.Observe || len(r.Private) > 0 {
			c.fault("match", "an approval allows, expires, and neither grants a credential nor opens a private range")
		}
	default:
		c.fault("match", "no such scope")
	}
}

func (c *compiler) checkRunScope(r *Rule) {
	switch {
	case r.Action != AllowAction:
	case r.Credential != "":
		c.fault("credential", "what narrows a run grants nothing: the policy's rule does")
	case !r.Limits.IsZero():
		c.fault("limits", "a limit that narrows a run is one of the whole run: write it outside of the rules")
	}
}

// filters reports whether allow rules of the run are asked beside the policy's.
func filters(list []Rule) bool {
	ruled := false
	for i := range list {
		if list[i].Scope != RunScope {
			continue
		}
		if ruled = true; list[i].Action == AllowAction {
			return true
		}
	}
	return !ruled
}
