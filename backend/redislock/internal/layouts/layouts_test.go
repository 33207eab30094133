package layouts

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

func TestFencesStayBelow63Bits(t *testing.T) {
	l := String("", false)
	year2255 := time.Date(2255, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	fence, err := l.Fence(fmt.Sprint(year2255)+"-999", "")
	if err != nil || fence >= 1<<63-fencesPerGrant {
		t.Errorf("in the year 2255: fence %d, %v", fence, err)
	}
}

func TestFloorIsReversed(t *testing.T) {
	for _, l := range []*Layout{String("", false), Redisson("", false)} {
		for _, floor := range []uint64{1, fencesPerGrant - 1, fencesPerGrant, 1795225002047293, 1795225002047293 * fencesPerGrant, 1<<63 - 1} {
			n, err := number(l.FloorID(floor))
			if err != nil || (n+1)*l.Span <= floor && n < 1<<62 {
				t.Errorf("floor %d: counter %q, next fence %d: %v", floor, l.FloorID(floor), (n+1)*l.Span, err)
			}
		}
	}
}

// Names that are taken have all their keys in one slot, and the others are refused.
func TestNamesInOneSlot(t *testing.T) {
	for name, ok := range map[string]bool{
		"job": true, "{job}": true, "a{b}c": true, "a}b": false, "}": false, "}{a}": true, "{a}{": true, "{a}}": true, "{a{b}": true, "{{a}": true,
		"a{b": false, "{": false, "{}": false, "{}a": false, "a{}{b}": false, "}{": false,
	} {
		together := true
		keys := []string{HoldKey(name, "o"), TokenKey(name), PermitsKey(name),
			ReaderKey(name, "o"), FreeChannel(name), LockChannel(name), RWChannel(name), PermitsChannel(name)}
		keys = append(append(keys, Redisson("", false).QueueKeys(name)...), String("", false).QueueKeys(name)...)
		for _, key := range keys {
			together = together && redisconn.SlotOf(key) == redisconn.SlotOf(name)
		}
		if together != ok {
			t.Errorf("%q: keys in one slot: %v", name, together)
		}
		if err := OneSlot(name); errors.Is(err, driver.ErrInvalid) == ok || err != nil && !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
