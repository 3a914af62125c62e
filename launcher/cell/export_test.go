package cell

import "os"

// Inside lets tests act as a sandbox, or as whoever is root in the gateway's namespace.
var Inside = inside

// OnThread lets tests act as somebody else.
var OnThread = onThread

// Settings are those that a test breaks one by one.
func Settings() (keys []string) {
	for _, s := range gatewaySettings() {
		if _, err := os.Stat(s.path()); err == nil {
			keys = append(keys, s.path())
		}
	}
	return keys
}

// Steps are the names of Create's parts.
func Steps() (names []string) {
	for _, s := range (&Network{}).steps(links{}, Cell{}) {
		names = append(names, s.name)
	}
	return names
}

// FailAfter has f called after each step of Create.
func (n *Network) FailAfter(f func(step string) error) { n.after = f }

// Namespace is the gateway's.
func (n *Network) Namespace() *os.File { return n.ns }
