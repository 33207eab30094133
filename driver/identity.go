package driver

import "context"

// Identifier is implemented by a backend that can tell its coordinator from all others, whatever its address.
type Identifier interface {
	// Identity returns a text that all connections to the coordinator have in common, and that no other
	// coordinator has. It is compared with that of others at one moment only, so it may be another one after
	// the coordinator was restarted. ErrSkip, or an empty text: the coordinator does not tell.
	Identity(ctx context.Context) (string, error)
}
