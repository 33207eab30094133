package redislock

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// Names that are taken have all their keys in one slot, and the others are refused.
func TestNamesInOneSlot(t *testing.T) {
	for name, ok := range map[string]bool{
		"job": true, "{job}": true, "a{b}c": true, "a}b": false, "}": false, "}{a}": true, "{a}{": true, "{a}}": true, "{a{b}": true, "{{a}": true,
		"a{b": false, "{": false, "{}": false, "{}a": false, "a{}{b}": false, "}{": false,
	} {
		together := true
		keys := []string{holdKey(name, "o"), tokenKey(name), permitsKey(name),
			readerKey(name, "o"), freeChannel(name), lockChannel(name), rwChannel(name), permitsChannel(name)}
		keys = append(append(keys, javaQueueKeys(name)...), ownQueueKeys(name)...)
		for _, key := range keys {
			together = together && redisconn.SlotOf(key) == redisconn.SlotOf(name)
		}
		if together != ok {
			t.Errorf("%q: keys in one slot: %v", name, together)
		}
		if err := oneSlot(name); errors.Is(err, driver.ErrInvalid) == ok || err != nil && !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
