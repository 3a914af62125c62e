package broker

// StandIn is what a sandbox gets for a secret.
func StandIn(secret string) (text string, parts []string, err error) {
	s, err := newStandIn([]byte(secret))
	return s.text, s.parts, err
}
