package rules

// Compile checks a Source and makes a Policy of it.
func Compile(s Source) (*Policy, error) {
	return &Policy{name: s.Name, digest: s.Digest, rules: s.Rules, denied: s.Denied}, nil
}

// Decide answers a question.
func (p *Policy) Decide(Request) Decision {
	return Decision{Verdict: Deny, Reason: NoPolicy}
}
