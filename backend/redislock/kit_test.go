package redislock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/layouts"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

var (
	acquire    = locktest.Acquire
	release    = locktest.Release
	armWatch   = locktest.Watch
	eventually = locktest.Eventually
)

// opener makes a backend by one of the client libraries.
type opener struct {
	name string
	open func(t testing.TB, addr string, opts Options) *Backend
}

var openers = []opener{{"url", openOwn}, {"go-redis", openGoRedis}}

// patientOpeners wait for an answer for an hour. A call that returns while the server is silent
// has not waited for it.
var patientOpeners = []opener{{"url", func(t testing.TB, addr string, opts Options) *Backend {
	return openAt(t, ownURL(addr, opts)+"&timeout=1h", opts)
}}, {"go-redis", func(t testing.TB, addr string, opts Options) *Backend {
	return openGoRedisWith(t, &redis.Options{Addr: addr, ReadTimeout: time.Hour, WriteTimeout: time.Hour}, opts)
}}}

func openOwn(t testing.TB, addr string, opts Options) *Backend {
	t.Helper()
	return openAt(t, ownURL(addr, opts)+"&timeout="+tooLong.String(), opts)
}

func ownURL(addr string, opts Options) string {
	url := "redis://" + addr + "?prefix=" + opts.Prefix
	if opts.Layout != "" {
		url += "&layout=" + string(opts.Layout)
	}
	if opts.Scripts != "" {
		url += "&scripts=" + string(opts.Scripts)
	}
	if opts.Replicas > 0 {
		url += fmt.Sprintf("&replicas=%d&replica_timeout=%v", opts.Replicas, opts.ReplicaTimeout)
	}
	return url
}

func openAt(t testing.TB, url string, opts Options) *Backend {
	t.Helper()
	b, err := Open(t.Context(), url)
	b = opened(t, b, err)
	if opts.Name != "" {
		b.caps.Name = opts.Name
	}
	return b
}

// noUpgrades is for clients of servers that do not tell of upgrades: go-redis has a data race
// between the greetings of a pool's connection and of a subscription when it finds that out.
var noUpgrades = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

func openGoRedis(t testing.TB, addr string, opts Options) *Backend {
	t.Helper()
	return openGoRedisWith(t, &redis.Options{Addr: addr, ReadTimeout: tooLong}, opts)
}

func openGoRedisWith(t testing.TB, o *redis.Options, opts Options) *Backend {
	t.Helper()
	o.MaintNotificationsConfig = noUpgrades
	c := redis.NewClient(o)
	b, err := NewGoRedis(c, &opts)
	c.Close() // as a user may
	return opened(t, b, err)
}

func opened(t testing.TB, b *Backend, err error) *Backend {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// eachOpener runs a test for each client library, side by side.
func eachOpener(t *testing.T, test func(t *testing.T, o opener)) { each(t, openers, test) }

func each(t *testing.T, openers []opener, test func(t *testing.T, o opener)) {
	for _, o := range openers {
		t.Run(o.name, func(t *testing.T) {
			t.Parallel()
			test(t, o)
		})
	}
}

// sideBySide runs tests all at once that wait more than they compute: of tests that call
// t.Parallel there are only as many as processors.
func sideBySide[T fmt.Stringer](t *testing.T, cases []T, test func(t *testing.T, c T)) {
	var wg sync.WaitGroup
	for _, c := range cases {
		wg.Go(func() { t.Run(c.String(), func(t *testing.T) { test(t, c) }) })
	}
	wg.Wait()
}

// raw is a plain client, as another program has it.
func raw(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, DialTimeout: tooLong, ReadTimeout: tooLong, WriteTimeout: tooLong})
	t.Cleanup(func() { c.Close() })
	return c
}

// request is for a fresh Owner, and a name of its own if name is empty.
func request(name string, mode driver.Mode) driver.Request {
	owner := driver.NewOwner()
	if name == "" {
		name = "test:" + driver.NewOwner()
	}
	return driver.Request{
		Hold:   driver.Hold{Name: name, Owner: owner, Mode: mode, TTL: 30 * time.Second},
		Fences: 1, Limit: 2,
	}
}

func refused(t testing.TB, b *Backend, r driver.Request, want error) error {
	t.Helper()
	_, err := b.Acquire(t.Context(), r)
	if !errors.Is(err, want) {
		t.Fatalf("acquire %v: %v, want %v", r.Mode, err, want)
	}
	if strings.Contains(err.Error(), "@user_script") {
		t.Errorf("acquire %v: %v: the user knows of no script", r.Mode, err)
	}
	return err
}

// givenUp makes an attempt that gets no answer, and gives it up after a time, in which its command has been sent: a busy
// machine is given more. It returns the error.
func givenUp(t testing.TB, b *Backend, r driver.Request, after time.Duration) error {
	t.Helper()
	for d := after; ; d *= 2 {
		ctx, cancel := timeout(t, d)
		_, err := b.Acquire(ctx, r)
		cancel()
		if !errors.Is(err, driver.ErrUnsent) || d > tooLong {
			return err
		}
	}
}

// tooLong is when a test no longer waits for what a busy machine has done long before.
const tooLong = time.Minute

// signalled waits until a watch signals.
func signalled(t testing.TB, w driver.Watch) {
	t.Helper()
	locktest.Signalled(t, w, "the lock was released")
}

// dump shows all keys of a name: type, content, and the TTL, rounded up.
func dump(t testing.TB, c *redis.Client, r driver.Request) []string {
	t.Helper()
	ctx := context.Background()
	keys := must.Get(c.Keys(ctx, "*"+r.Name+"*").Result())(t)
	var lines []string
	for _, key := range keys {
		ttl := "no TTL"
		if d := c.PTTL(ctx, key).Val(); d > 0 {
			ttl = roundUp(d - time.Millisecond) // as in content
		}
		line := fmt.Sprintf("%s %s %s", key, content(ctx, c, key), ttl)
		for i, id := range []string{layouts.PermitID(r.Owner), r.Owner, r.Name} {
			line = strings.ReplaceAll(line, id, []string{"ID", "OWNER", "NAME"}[i])
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// roundUp rounds to ten seconds, since a busy machine takes a while until it looks.
func roundUp(d time.Duration) string {
	const unit = 10 * time.Second
	return fmt.Sprintf("%.0fs", ((d + unit - 1) / unit * unit).Seconds())
}

func content(ctx context.Context, c *redis.Client, key string) string {
	switch kind := c.Type(ctx, key).Val(); kind {
	case "string":
		return "string " + c.Get(ctx, key).Val()
	case "hash":
		var fields []string
		for f, v := range c.HGetAll(ctx, key).Val() {
			fields = append(fields, f+"="+v)
		}
		slices.Sort(fields)
		return "hash " + strings.Join(fields, " ")
	case "zset":
		var members []string
		now := c.Time(ctx).Val()
		for _, z := range c.ZRangeWithScores(ctx, key, 0, -1).Val() {
			left := time.UnixMilli(int64(z.Score) - 1).Sub(now) // its end was rounded up to a millisecond
			members = append(members, z.Member.(string)+":"+roundUp(left))
		}
		return "zset " + strings.Join(members, " ")
	case "list":
		return "list " + strings.Join(c.LRange(ctx, key, 0, -1).Val(), " ")
	default:
		return kind
	}
}

// expect compares a dump. In want "#" stands for a fence.
func expect(t testing.TB, got []string, want ...string) {
	t.Helper()
	for i := range got {
		words := strings.Split(got[i], " ")
		for k, w := range words {
			if len(w) > 12 && strings.Trim(w, "0123456789-,") == "" {
				words[k] = "#"
			}
		}
		got[i] = strings.Join(words, " ")
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("keys are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// messages collects what is published on channels until the test asks for it.
type messages struct {
	t  testing.TB
	ps *redis.PubSub
}

func listen(t testing.TB, c *redis.Client, channels ...string) *messages {
	t.Helper()
	ps := c.Subscribe(t.Context(), channels...)
	t.Cleanup(func() { ps.Close() })
	for range channels {
		must.Get(ps.Receive(t.Context()))(t)
	}
	return &messages{t, ps}
}

func (m *messages) next(channel, payload string) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), tooLong)
	defer cancel()
	msg, err := m.ps.ReceiveMessage(ctx)
	if err != nil {
		m.t.Fatalf("no message; want %q on %s: %v", payload, channel, err)
	}
	if msg.Channel != channel || msg.Payload != payload {
		m.t.Errorf("message %q on %s, want %q on %s", msg.Payload, msg.Channel, payload, channel)
	}
}

// holdersKey is the key of who holds a name, in the layout "string".
func holdersKey(name string) string {
	return layouts.String("", false).Mode(driver.Read).Keys(nil, name, "")[1]
}

// placeOf is how r's place in the queue is written.
func placeOf(b *Backend, r driver.Request) string {
	if b.layout.Redisson {
		return layouts.Field(r.Owner)
	}
	return r.Owner + map[driver.Mode]string{driver.Write: "w", driver.Read: "r", driver.Counted: fmt.Sprint("p", r.Limit)}[r.Mode]
}

// fencesPerGrant is how many fences a number of the counter stands for in the layout "string".
var fencesPerGrant = layouts.String("", false).Span

// scriptsOf returns the storage of a backend that runs scripts; nil: it runs none.
func scriptsOf(b *Backend) *scripted {
	switch s := b.storage.(type) {
	case *scripted:
		return s
	case *uncontended:
		return s.scripted
	}
	return nil
}
