package redislock

import (
	"strconv"

	"github.com/distlock/distlock/driver"
)

// layout is how locks are written in Redis: one recipe for each mode.
type layout struct {
	recipes [driver.Counted + 1]*recipe

	// counter is the key that a name's fences come from, and span how many fences
	// there are for each number that it gives.
	counter func(prefix, name string) string
	span    uint64

	// line are the keys of those who wait for an exclusive lock: the line itself, whose
	// key begins with linePrefix, our places, and Java's where it takes part.
	line       func(name string) []string
	linePrefix string
}

// recipe is how the holds of one mode are written.
type recipe struct {
	take, keep, drop *script

	// writer is how an owner is written.
	writer func(owner string) string
	// keeper is how keep finds it, if that differs.
	keeper func(owner string) string

	// keys of a hold, the same for the three scripts; keep needs the first kept.
	keys func(name, owner string) []string
	kept int

	// takeArgs come after writer, TTL and description; dropArgs after writer and channel.
	takeArgs func(name string, r driver.Request) []string
	dropArgs func(name string) []string

	channel func(name string) string
	// wakes says how many waiters a message on the channel lets in.
	wakes func(message string) int
	span  uint64
}

func (r *recipe) keepsAs(owner string) string {
	if r.keeper != nil {
		return r.keeper(owner)
	}
	return r.writer(owner)
}

// waitsOn is the channel that tells r's waiter: one of its own if it stands in line.
func (r *recipe) waitsOn(name string, req driver.Request) string {
	if req.Queue {
		return r.channel(name) + ":" + r.writer(req.Owner)
	}
	return r.channel(name)
}

const everybody = 1 << 30

// one: an exclusive lock that became free lets one in.
func one(string) int { return 1 }

// number is Redisson's message on a semaphore's channel: permits that are free.
func number(message string) int {
	n, err := strconv.Atoi(message)
	if err != nil {
		return everybody
	}
	return n
}

// readers is Redisson's message on a read/write lock's channel: "0" is sent by the last
// reader, and only a writer can be waiting for that; "1" by a writer.
func readers(message string) int {
	if message == "0" {
		return 1
	}
	return everybody
}
