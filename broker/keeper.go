package broker

import (
	"log/slog"

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
}

// Save implements [sign.Keeper].
func (k loudKeeper) Save(v secret.Value) error {
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
