package sqlrow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// claimRecord is a claim as it stands in Row.Claims.
type claimRecord struct {
	Owner   string `json:"owner"`
	Mode    uint8  `json:"mode"`             // a driver.Mode
	Number  int64  `json:"number,omitempty"` // of a hold's grant
	Ticket  int64  `json:"ticket,omitempty"` // of a place in line
	Since   int64  `json:"since"`            // µs
	Until   int64  `json:"until"`            // µs
	Address string `json:"address,omitempty"`
	Meta    string `json:"meta,omitempty"`
}

func recordOf(c claims.Claim) claimRecord {
	return claimRecord{
		Owner: c.Owner, Mode: uint8(c.Mode), Number: c.Fence >> claims.SpanBits, Ticket: c.Ticket,
		Since: c.Since / micro, Until: c.Until / micro, Address: c.Address, Meta: c.Meta,
	}
}

func (e claimRecord) claim() claims.Claim {
	return claims.Claim{
		Owner: e.Owner, Mode: driver.Mode(e.Mode), Fence: e.Number << claims.SpanBits, Ticket: e.Ticket,
		Since: e.Since * micro, Until: e.Until * micro, Address: e.Address, Meta: e.Meta,
	}
}

func encode(list []claimRecord) ([]byte, error) {
	if len(list) == 0 {
		return nil, nil
	}
	return json.Marshal(list)
}

// records are all claims in the row, those included that have ended.
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

// check looks for what makes no sense.
func (r Row) check(list []claimRecord) error {
	lined := r.Kind == driver.Counted || r.Kind.Alone()
	switch {
	case r.Rev < 0 || r.Rev == 0 && r.Name != "" || r.Number < 0 || r.Number > MaxNumber:
		return fmt.Errorf("rev %d, number %d", r.Rev, r.Number)
	case len(list) > 0 && !lined:
		return fmt.Errorf("kind %d", r.Kind)
	}
	for _, e := range list {
		if err := e.check(r.Kind); err != nil {
			return err
		}
	}
	return nil
}

// maxMicros is the last moment in µs that is one in ns too.
const maxMicros = math.MaxInt64 / micro

func (e claimRecord) check(kind driver.Mode) error {
	switch {
	case e.Owner == "":
		return fmt.Errorf("a claim without an owner")
	case claims.KindOf(driver.Mode(e.Mode)) != kind:
		return fmt.Errorf("owner %q has mode %d in a lock of kind %d", e.Owner, e.Mode, kind)
	case e.Ticket < 0 || e.Number < 0 || e.Number > MaxNumber || (e.Ticket > 0) == (e.Number > 0):
		return fmt.Errorf("owner %q has ticket %d and number %d", e.Owner, e.Ticket, e.Number)
	case e.Since < 0 || e.Since > maxMicros || e.Until < 0 || e.Until > maxMicros:
		return fmt.Errorf("owner %q holds from %d to %d", e.Owner, e.Since, e.Until)
	}
	return nil
}
