package redislock

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// heldLine opens a backend, and takes a name that others then wait for.
func heldLine(t *testing.T, layout Layout) (*Backend, *redis.Client, driver.Request) {
	srv := testserver.SharedRedis(t)
	b, c := openOwn(t, srv.Addr(), Options{Layout: layout}), raw(t, srv.Addr())
	r := request("", driver.Exclusive)
	acquire(t, b, r)
	return b, c, r
}

// stands makes a request that is refused and stands in line.
func stands(t *testing.T, b *Backend, name string) driver.Request {
	t.Helper()
	r := request(name, driver.Exclusive)
	r.Queue = true
	r.TTL -= 10 * time.Millisecond // a place lasts up to a millisecond longer
	refused(t, b, r, driver.ErrHeld)
	return r
}

func eachLayout(t *testing.T, test func(t *testing.T, layout Layout)) {
	for _, layout := range []Layout{String, Redisson} {
		t.Run(string(layout), func(t *testing.T) {
			t.Parallel()
			test(t, layout)
		})
	}
}

func TestLineOnTheWire(t *testing.T) {
	token := "redisson_lock_token:{NAME} string # no TTL"
	note := "{NAME}:OWNER:distlock string +OWNER  # 30s"
	want := map[Layout][][]string{
		String: {{
			"NAME string HOLDER  # 30s",
			"distlock_line:{NAME} list OWNER 30s",
			"distlock_places:{NAME} zset OWNER:30s 30s",
		}, {"NAME string OWNER  # 30s"}, nil},
		Redisson: {{
			"NAME hash HOLDER:1=1 30s",
			"distlock_places:{NAME} zset OWNER:1:30s 40s",
			"redisson_lock_queue:{NAME} list OWNER:1 no TTL",
			"redisson_lock_timeout:{NAME} zset OWNER:1:40s no TTL",
			token, "{NAME}:HOLDER:distlock string +HOLDER  # 30s",
		}, {"NAME hash OWNER:1=1 30s", note, token}, {token}},
	}
	eachLayout(t, func(t *testing.T, layout Layout) {
		b, c, r := heldLine(t, layout)
		w := stands(t, b, r.Name)
		own := b.layout.recipes[driver.Exclusive].channelFor(r.Name, w)
		m := listen(t, c, own)
		for range 2 { // asking again changes nothing
			refused(t, b, w, driver.ErrHeld)
			expect(t, withHolder(dump(t, c, w), r), want[layout][0]...)
		}
		release(t, b, r)
		m.next(own, "0")
		for range 2 { // nor does it for the holder
			acquire(t, b, w)
			expect(t, dump(t, c, w), want[layout][1]...)
		}
		release(t, b, w)
		expect(t, dump(t, c, w), want[layout][2]...)
	})
}

// withHolder names the holder in a dump for another.
func withHolder(lines []string, holder driver.Request) []string {
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], holder.Owner, "HOLDER")
	}
	slices.Sort(lines)
	return lines
}
