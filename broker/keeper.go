package broker

import (
	"errors"
	"log/slog"
	"sync"

	"sallyport/broker/secret"
	"sallyport/broker/sign"
)

// Keeper is where what a server gave in place of one credential's secret is kept
// over a restart.
type Keeper interface {
	sign.Keeper
	// Wipe forgets what is kept; nothing kept is no fault.
	Wipe() error
}

// loudKeeper tells the log what could not be kept: whoever reads it may still mend
// the disk before the broker ends.
type loudKeeper struct {
	Keeper
	credential string
	log        *slog.Logger

	mu    sync.Mutex // guards ended, and is held while a token is written
	ended bool
}

// end has nothing kept from here on: a token that arrives for a secret that was
// revoked or rotated meanwhile must not take the place of what is kept now.
func (k *loudKeeper) end() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
}

// errEnded stays with a scheme that nobody uses any more.
var errEnded = errors.New("the credential was revoked or rotated")

// Save implements [sign.Keeper].
func (k *loudKeeper) Save(v secret.Value) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return errEnded
	}
	err := k.Keeper.Save(v)
	if err != nil {
		k.log.Error("THE REFRESH TOKEN THAT A SERVER JUST GAVE CANNOT BE KEPT ON DISK: it is in memory only, and lost with the broker; "+
			"this is tried again every 30 s", "credential", k.credential, "cause", err)
	}
	return err
}

// unsaved says why what took the secret's place is in memory only; nil if it is not.
func (b *bound) unsaved() error {
	if r, ok := b.scheme.(sign.Rotator); ok {
		return r.Unsaved()
	}
	return nil
}
