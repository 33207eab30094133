package claims

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
)

const (
	// MinTTL is about the longest that one write to a slow disk takes: what is shorter
	// would end before it is known.
	MinTTL = 10 * time.Millisecond

	// MaxTTL keeps the sum of a clock and a TTL far from overflow.
	MaxTTL = 100 * 365 * 24 * time.Hour
)

// CheckRequest refuses what the core never asks for.
func CheckRequest(r driver.Request) error {
	switch {
	case r.Mode == 0 || !driver.AllModes.Has(r.Mode):
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, r.Mode)
	case r.Name == "" || r.Owner == "":
		return fmt.Errorf("%w: a request needs a name and an owner", driver.ErrInvalid)
	case r.Mode == driver.Counted && r.Limit < 1:
		return fmt.Errorf("%w: limit %d: want at least 1", driver.ErrInvalid, r.Limit)
	}
	return checkTTL(r.TTL)
}

// CheckRenewal refuses renewals that the core never asks for.
func CheckRenewal(h driver.Hold) error {
	if h.Floor>>SpanBits > MaxNumber {
		return fmt.Errorf("%w: floor %d is no fence: want less than 1<<63", driver.ErrInvalid, h.Floor)
	}
	return checkTTL(h.TTL)
}

func checkTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > MaxTTL {
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", driver.ErrInvalid, ttl, MaxTTL)
	}
	return nil
}

// EncodeMeta is meta as JSON, empty if there is none.
func EncodeMeta(meta map[string]string) (string, error) {
	if len(meta) == 0 {
		return "", nil
	}
	text, err := json.Marshal(meta)
	return string(text), err
}
