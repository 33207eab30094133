package sqlrow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// state is the content of a row at a moment.
type state struct {
	claims.Lock     // with times in ns
	row         Row // as it was read
	now         int64

	// leeway is how long after now the state may be written.
	leeway time.Duration
}

const micro = int64(time.Microsecond)

// ends returns the end of a hold that begins now.
func (s *state) ends(ttl time.Duration) int64 { return s.now + int64(wholeMicros(ttl)) }

// wholeMicros rounds a duration up to µs.
func wholeMicros(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// read decodes a row as of now, in µs, without claims that have ended. A row that no program of ours
// can have written is ErrInvalid.
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
		s.Claims = append(s.Claims, e.claim())
	}
	s.Expire(s.now)
	s.Sort()
	return s, nil
}

// clone returns a state that changes apart from s.
func (s *state) clone() *state {
	c := *s
	c.Claims = slices.Clone(s.Claims)
	return &c
}

// write encodes the state as a row.
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

// claimRecord is a claim as Row.Claims stores it.
type claimRecord struct {
	Owner   string `json:"owner"`
	Mode    uint8  `json:"mode"`             // a driver.Mode
	Number  int64  `json:"number,omitempty"` // of a hold's grant
	Place   int64  `json:"ticket,omitempty"` // of a place in the queue
	Since   int64  `json:"since"`            // µs
	Until   int64  `json:"until"`            // µs
	Address string `json:"address,omitempty"`
	Meta    string `json:"meta,omitempty"`
}

func recordOf(c claims.Claim) claimRecord {
	return claimRecord{
		Owner: c.Owner, Mode: uint8(c.Mode), Number: c.Fence >> claims.SpanBits, Place: c.Place,
		Since: c.Since / micro, Until: c.Until / micro, Address: c.Address, Meta: c.Meta,
	}
}

func (r claimRecord) claim() claims.Claim {
	return claims.Claim{
		Owner: r.Owner, Mode: driver.Mode(r.Mode), Fence: r.Number << claims.SpanBits, Place: r.Place,
		Since: r.Since * micro, Until: r.Until * micro, Address: r.Address, Meta: r.Meta,
	}
}

// encode writes claims as JSON with a line for each, so that SQL can find where one ends: a text in JSON has no line feed.
func encode(list []claimRecord) ([]byte, error) {
	if len(list) == 0 {
		return nil, nil
	}
	text := []byte("[")
	for i, r := range list {
		one, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			text = append(text, ",\n"...)
		}
		text = append(text, one...)
	}
	return append(text, ']'), nil
}

// Own returns how owner's claim begins in Row.Claims, up to the number of its mode. No other text there has that: within a
// text of JSON each quote has a backslash.
func Own(owner string) string {
	text, _ := json.Marshal(owner)
	return `{"owner":` + string(text) + `,"mode":`
}

// Tail returns how the claim of t's owner ends in Row.Claims, from behind its last number.
func (t TakeRequest) Tail() string {
	text, _ := json.Marshal(struct {
		Address string `json:"address,omitempty"`
		Meta    string `json:"meta,omitempty"`
	}{t.Address, string(t.Meta)})
	if len(text) == len("{}") {
		return "}"
	}
	return "," + string(text[1:])
}

// records returns all claims in the row, including those that have ended.
func (r Row) records() ([]claimRecord, error) {
	var list []claimRecord
	if len(r.Claims) > 0 {
		d := json.NewDecoder(bytes.NewReader(r.Claims))
		d.DisallowUnknownFields()
		if err := d.Decode(&list); err != nil {
			return nil, fmt.Errorf("claims: %w", err)
		}
	}
	if r.Owner != "" {
		list = append(list, claimRecord{
			Owner: r.Owner, Mode: uint8(r.Kind), Number: r.Granted,
			Since: r.Since, Until: r.Until, Address: r.Address, Meta: string(r.Meta),
		})
	}
	return list, nil
}

// check returns an error if the row contradicts itself.
func (r Row) check(list []claimRecord) error {
	hasClaims := r.Kind == driver.Counted || r.Kind.Alone()
	switch {
	case r.Rev < 0 || r.Rev == 0 && r.Name != "" || r.Number < 0 || r.Number > MaxNumber:
		return fmt.Errorf("rev %d, number %d", r.Rev, r.Number)
	case len(list) > 0 && !hasClaims:
		return fmt.Errorf("kind %d", r.Kind)
	}
	for _, e := range list {
		if err := e.check(); err != nil {
			return err
		}
	}
	return nil
}

// Forever is the end of a hold without an end, and the last time that can be converted to ns.
const Forever = claims.Forever / micro

func (r claimRecord) check() error {
	switch {
	case r.Owner == "":
		return fmt.Errorf("a claim without an owner")
	case !driver.AllModes.Has(driver.Mode(r.Mode)):
		return fmt.Errorf("owner %q has mode %d", r.Owner, r.Mode)
	case r.Place < 0 || r.Number < 0 || r.Number > MaxNumber || (r.Place > 0) == (r.Number > 0):
		return fmt.Errorf("owner %q has ticket %d and number %d", r.Owner, r.Place, r.Number)
	case r.Since < 0 || r.Since > Forever || r.Until < 0 || r.Until > Forever:
		return fmt.Errorf("owner %q holds from %d to %d", r.Owner, r.Since, r.Until)
	}
	return nil
}
