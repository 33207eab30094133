package redislock

import (
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// handoff is how many fences each grant of the string layout has. The counter follows
// the clock in microseconds; its number is multiplied by this, so that a span does not
// make the counter run ahead of the clock, which it would have to fall back on if it
// were lost.
const handoff = 1024

// spanLife is for how long a process that is not fair hands on without asking whether
// somebody has come to stand in line.
const spanLife = time.Millisecond

// stringLayout writes an exclusive lock as everybody does who locks with
// SET name value NX PX: a string, whose value begins with the Owner.
func stringLayout(strict bool) *layout {
	l := &layout{
		counter: func(prefix, _ string) string { return prefix + counterName },
		span:    handoff,
		line:    ownLine, linePrefix: ownLinePrefix,
	}
	if strict {
		l.counter = slotCounter
	}
	l.recipes[driver.Exclusive] = &recipe{
		take:    compose("fence_stream", "string_take_free", "foreign", "line", "line_stand", "string_take"),
		keep:    compose("fence_stream", "ask", "lost", "keep", "string_keep"),
		drop:    compose("ask", "publish", "string_drop_alone", "lost", "line", "line_drop", "string_drop"),
		writer:  func(owner string) string { return owner },
		keys:    func(name, _ string) []string { return append(append(make([]string, 0, 4), name), ownLine(name)...) },
		kept:    1,
		channel: freeChannel,
		wakes:   one,
		span:    handoff,
	}
	addReadWrite(l, "fence_stream")
	addCounted(l, "fence_stream", false)
	return l
}

// slotCounter is the counter for the names of one slot: a script of a cluster reaches
// no other. A prefix with a hash tag has all its names in one.
func slotCounter(prefix, name string) string {
	if _, ok := redisconn.HashTag(prefix); ok {
		return prefix + counterName
	}
	return prefix + counterName + ":{" + redisconn.SlotTags()[redisconn.SlotOf(prefix+name)] + "}"
}
