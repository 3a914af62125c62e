package sign

import "fmt"

// UnfitError says that a request is none that the credential's settings sign: it is
// for another container, region or service, or cannot be read as one. The secret is
// in order, and trying again changes nothing.
type UnfitError struct{ text string }

// Error implements [error].
func (e *UnfitError) Error() string { return e.text }

func unfit(format string, args ...any) error {
	return &UnfitError{fmt.Sprintf(format, args...)}
}
