package redislock

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/distlock/distlock/driver"
)

func TestSlots(t *testing.T) {
	// As CLUSTER KEYSLOT answers.
	for key, want := range map[string]int{
		"": 0, "123456789": 12739, "foo": 12182, "{foo}bar": 12182, "a{foo}{bar}": 12182,
		"foo{}{bar}": 8363, "foo{{bar}}zap": 4015, "{user1000}.following": 3443,
	} {
		if got := slotOf(key); got != want {
			t.Errorf("slot of %q: %d, want %d", key, got, want)
		}
	}
	for slot, tag := range slotTags() {
		if got := slotOf("distlock:fence:{" + tag + "}"); got != slot || len(tag) > 6 {
			t.Fatalf("tag %q of slot %d lies in %d", tag, slot, got)
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
		keys := []string{holdKey(name, "o"), tokenKey(name), permitsKey(name),
			readerKey(name, "o"), freeChannel(name), lockChannel(name), rwChannel(name), permitsChannel(name)}
		keys = append(append(keys, javaLine(name)...), ownLine(name)...)
		for _, key := range keys {
			together = together && slotOf(key) == slotOf(name)
		}
		if together != ok {
			t.Errorf("%q: keys in one slot: %v", name, together)
		}
		if err := oneSlot(name); errors.Is(err, driver.ErrInvalid) == ok || err != nil && !strings.Contains(err.Error(), strconv.Quote(name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
