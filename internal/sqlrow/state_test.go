package sqlrow

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// full returns a row with a writer, and with a reader, a writer and a permit in its queue.
func full() Row {
	return Row{
		Key: KeyOf("x"), Name: "x", Kind: driver.Write, Limit: 2, Number: 9, Rev: 3,
		Owner: "w", Granted: 7, Since: 100, Until: 2000, Meta: []byte(`{"pid":"1"}`), Address: "b1",
		Claims: []byte(`[{"owner":"r","mode":3,"ticket":1,"since":200,"until":1500,"address":"b2"},` + "\n" +
			`{"owner":"v","mode":2,"ticket":2,"since":300,"until":1800,"meta":"{}"},` + "\n" +
			`{"owner":"p","mode":4,"ticket":3,"since":300,"until":1700}]`),
		Claimed: 1800,
	}
}

// A row that is read and written stays the same, except for expired claims.
func TestRowRoundTrip(t *testing.T) {
	for now, want := range map[int64]int{1000: 4, 1500: 3, 1800: 1, 2000: 0} {
		s, err := read(full(), now)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Claims) != want {
			t.Errorf("at %d there are %d claims; want %d", now, len(s.Claims), want)
		}
		row, err := s.write("x")
		if err != nil {
			t.Fatal(err)
		}
		switch now {
		case 1000:
			want := full()
			want.Earliest, want.Latest = now, now
			if !reflect.DeepEqual(row, want) {
				t.Errorf("wrote\n%+v\nafter\n%+v", row, want)
			}
		case 2000:
			if row.Owner != "" || row.Until != 0 || row.Claims != nil || row.Claimed != 0 || row.Number != 9 {
				t.Errorf("all claims have ended, but the row is %+v", row)
			}
		}
	}
}

// Rows that no version of distlock writes are refused with an explanation.
func TestOddRows(t *testing.T) {
	for what, spoil := range map[string]func(*Row){
		"claims":   func(r *Row) { r.Claims = []byte("{") },
		"sorts":    func(r *Row) { r.Claims = []byte(`[{"owner":"r","mode":3,"number":1,"since":1,"until":1,"sorts":1}]`) },
		"an owner": func(r *Row) { r.Claims = []byte(`[{"mode":3,"number":1,"since":1,"until":1}]`) },
		"mode 0":   func(r *Row) { r.Claims = []byte(`[{"owner":"r","number":1,"since":1,"until":1}]`) },
		"mode 99":  func(r *Row) { r.Claims = []byte(`[{"owner":"r","mode":99,"number":1,"since":1,"until":1}]`) },
		"ticket 1": func(r *Row) { r.Claims = []byte(`[{"owner":"r","mode":3,"number":1,"ticket":1,"since":1,"until":1}]`) },
		"ticket 0": func(r *Row) { r.Granted = 0 },
		"kind 0":   func(r *Row) { r.Kind = 0 },
		"kind 3":   func(r *Row) { r.Kind = driver.Read },
		"kind 200": func(r *Row) { r.Kind = 200 },
		"number -": func(r *Row) { r.Number = -1 },
		"number 9": func(r *Row) { r.Number = MaxNumber + 1 },
		"rev 0":    func(r *Row) { r.Rev = 0 },
		"rev -1":   func(r *Row) { r.Rev = -1 },
		"holds":    func(r *Row) { r.Until = math.MaxInt64 },
		"from -1":  func(r *Row) { r.Since = -1 },
	} {
		row := full()
		spoil(&row)
		_, err := read(row, 1000)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A waiter listens to the claim that it must wait for last. It listens to none if any of several may
// end first.
func TestAddressOf(t *testing.T) {
	a, b := &claims.Claim{Owner: "a", Address: "a"}, &claims.Claim{Owner: "b", Address: "b"}
	for _, c := range []struct {
		ahead   []*claims.Claim
		mode    driver.Mode
		address string
		found   bool
	}{
		{nil, driver.Exclusive, "", false},
		{[]*claims.Claim{a}, driver.Exclusive, "a", true},
		{[]*claims.Claim{a, b}, driver.Write, "b", true},
		{[]*claims.Claim{a, b}, driver.Counted, "", false},
		{[]*claims.Claim{b, b}, driver.Counted, "b", true},
	} {
		if address, found := addressOf(c.ahead, c.mode); address != c.address || found != c.found {
			t.Errorf("%v of %v: %q, %v", c.mode, c.ahead, address, found)
		}
	}
}

// A TTL is never cut short.
func TestWholeMicros(t *testing.T) {
	s, err := read(Row{Key: KeyOf("x")}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	r := asks("x", driver.Counted)
	r.TTL = 1_000_001
	s.decide(r, claims.Claim{})
	row, err := s.write("x")
	if err != nil || row.Claimed != 1000+1001 {
		t.Errorf("a TTL of %v from 1000 on ends at %d, %v", r.TTL, row.Claimed, err)
	}
}
