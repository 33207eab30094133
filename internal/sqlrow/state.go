package sqlrow

import (
	"fmt"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// state is a row as of a moment: who claims the lock.
type state struct {
	claims.Lock     // with times in ns
	row         Row // as it was read
	now         int64

	// leeway is how long after now the state may be written.
	leeway time.Duration
}

const micro = int64(time.Microsecond)

// ends is when a life that begins now ends.
func (s *state) ends(ttl time.Duration) int64 { return s.now + int64(wholeMicros(ttl)) }

// wholeMicros rounds up.
func wholeMicros(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// read makes sense of a row as of now, in µs. Claims that have ended are left out. What
// no program of ours can have written is ErrInvalid.
func read(row Row, now int64) (*state, error) {
	s := &state{row: row, now: now * micro}
	s.Kind, s.Limit, s.Number = row.Kind, row.Limit, row.Number
	entries, err := row.records()
	if err == nil {
		err = row.check(entries)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the lock's row was changed by another program: %w", driver.ErrInvalid, err)
	}
	for _, e := range entries {
		if e.Until > now {
			s.Claims = append(s.Claims, e.claim())
		}
	}
	s.Sort()
	return s, nil
}

// write is the row that says what s has become.
func (s *state) write(name string) (Row, error) {
	r := Row{
		Key: KeyOf(name), Name: name, Rev: s.row.Rev,
		Kind: s.Kind, Limit: s.Limit, Number: s.Number,
		Earliest: s.now / micro, Latest: (s.now + int64(s.leeway)) / micro,
	}
	var rest []claimRecord
	for _, c := range s.Claims {
		e := recordOf(c)
		if !c.Holds() || !c.Mode.Alone() {
			rest = append(rest, e)
			r.Claimed = max(r.Claimed, e.Until)
			continue
		}
		r.Owner, r.Granted, r.Since, r.Until, r.Address = e.Owner, e.Number, e.Since, e.Until, e.Address
		r.Meta = bytesOf(e.Meta)
	}
	var err error
	r.Claims, err = encode(rest)
	if err == nil && len(r.Claims) > MaxText {
		err = fmt.Errorf("%w: all claims on the lock have %d bytes together, at most %d are possible: give less meta data", driver.ErrInvalid, len(r.Claims), MaxText)
	}
	return r, err
}

func bytesOf(text string) []byte {
	if text == "" {
		return nil
	}
	return []byte(text)
}

// set replaces the owner's claim, or adds one.
func (s *state) set(c claims.Claim) {
	s.remove(c.Owner)
	s.Claims = append(s.Claims, c)
	s.Sort()
}

// remove reports whether owner had a claim.
func (s *state) remove(owner string) bool {
	before := len(s.Claims)
	s.Claims = without(s.Claims, owner)
	return len(s.Claims) < before
}

func without(list []claims.Claim, owner string) []claims.Claim {
	var kept []claims.Claim
	for _, c := range list {
		if c.Owner != owner {
			kept = append(kept, c)
		}
	}
	return kept
}
