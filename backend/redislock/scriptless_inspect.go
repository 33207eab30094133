package redislock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
)

// look sees what plain commands tell of a name in one round trip. Of Redisson's locks
// that is who holds, and not what is kept beside each hold.
func (p *scriptless) look(ctx context.Context, name string) (sight, error) {
	got := p.b.client.DoAll(ctx, name, [][]string{
		{"TYPE", name}, {"TIME"}, {"PTTL", name}, {"GET", name},
		{"HGET", name, "mode"}, {"HKEYS", name},
		{"EXISTS", permitsKey(name)}, {"LRANGE", p.b.layout.line(name)[0], "0", "-1"},
	})
	// Some are asked of a key of another type.
	var needed []redisconn.Answer
	s := sight{kind: text(got[0].Reply), now: clock(got[1].Reply), left: integer(got[2].Reply)}
	switch s.kind {
	case "string":
		s.value = text(got[3].Reply)
		needed = []redisconn.Answer{got[3], got[6]}
		if integer(got[6].Reply) > 0 {
			return sight{}, fmt.Errorf("%w: to tell who holds a semaphore, without scripts", driver.ErrUnsupported)
		}
	case "hash":
		s.value = text(got[4].Reply)
		needed = got[4:6]
		for _, field := range texts(got[5].Reply) {
			if field != "mode" {
				s.holders = append(s.holders, seen{written: field, left: s.left})
			}
		}
	}
	if err := redisconn.FirstError(append(got[:3:3], needed...)); err != nil {
		return sight{}, explain(err)
	}
	s.waiters = lineOf(texts(got[7].Reply))
	return s, nil
}

// clock reads the answer to TIME: the time since 1970.
func clock(reply any) time.Duration {
	parts := texts(reply)
	if len(parts) != 2 {
		return 0
	}
	seconds, _ := strconv.ParseInt(parts[0], 10, 64)
	micros, _ := strconv.ParseInt(parts[1], 10, 64)
	return time.Duration(seconds)*time.Second + time.Duration(micros)*time.Microsecond
}

// locks are those of keys, all of one slot, that are plain locks taken by distlock.
func (p *scriptless) locks(ctx context.Context, keys []string) ([]string, error) {
	commands := make([][]string, len(keys))
	for i, key := range keys {
		commands[i] = []string{"GETRANGE", key, "0", itoa(ownerLen)}
	}
	var held []string
	for i, a := range p.b.client.DoAll(ctx, keys[0], commands) {
		re, refused := redisconn.AsReply(a.Err)
		switch {
		case a.Err == nil:
			if value := text(a.Reply); noteStart.MatchString(value) {
				held = append(held, keys[i])
			}
		case !refused || !re.HasCode("WRONGTYPE"):
			return nil, explain(a.Err)
		}
	}
	return held, nil
}
