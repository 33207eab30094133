package driver

import (
	"fmt"
	"time"
)

// Validate returns an error if a backend with these Caps can never grant r: ErrUnsupported for a mode
// or a queue that it does not have, and ErrInvalid for what no backend takes. A backend calls it at the
// beginning of Acquire, and adds what only it can't do.
func (r *Request) Validate(c Caps) error {
	switch {
	case r.Mode == 0 || !c.Modes.Has(r.Mode):
		return fmt.Errorf("%w: mode %v: want one of: %v", ErrUnsupported, r.Mode, c.Modes)
	case r.Queue && c.QueueingOf(r.Mode) == QueueNever:
		return fmt.Errorf("%w: there is no queue for mode %v", ErrUnsupported, r.Mode)
	case r.Name == "" || r.Owner == "":
		return fmt.Errorf("%w: a request needs a name and an owner", ErrInvalid)
	case r.Mode == Counted && r.Limit < 1:
		return fmt.Errorf("%w: %d permits: want at least 1", ErrInvalid, r.Limit)
	}
	return validateTTL(r.TTL)
}

// ValidateRenewal returns ErrInvalid if no backend takes the TTL or the Floor of h. A backend calls it
// at the beginning of Renew.
func (h *Hold) ValidateRenewal() error {
	if h.Floor >= 1<<63 {
		return fmt.Errorf("%w: floor %d is no fence: want less than 1<<63", ErrInvalid, h.Floor)
	}
	return validateTTL(h.TTL)
}

func validateTTL(ttl time.Duration) error {
	const most = 2 * MaxTTL // combinators add to what the core asks for
	if ttl <= 0 || ttl > most {
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", ErrInvalid, ttl, MaxTTL)
	}
	return nil
}
