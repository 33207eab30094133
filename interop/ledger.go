package interop

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/redis/go-redis/v9"
)

// Ledger detects overlapping holds. A visitor counts itself in and out, checks for others, and increments
// a number by a read and a write. Ledger.java does the same with the same keys of the shared Redis.
type Ledger struct {
	c     *redis.Client
	name  string
	limit int
}

// NewLedger makes a ledger that admits up to limit counted visitors at once.
func NewLedger(t *testing.T, limit int) *Ledger {
	c := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr()})
	t.Cleanup(func() { c.Close() })
	return &Ledger{c, "ledger:" + NewName(t), limit}
}

// words names the ledger to Java.
func (l *Ledger) words() []string {
	host, port, _ := net.SplitHostPort(l.c.Options().Addr)
	return []string{host, port, l.name, strconv.Itoa(l.limit)}
}

func (l *Ledger) key(name string) string { return l.name + ":" + name }

func (l *Ledger) number(ctx context.Context, name string) uint64 {
	n, _ := l.c.Get(ctx, l.key(name)).Uint64()
	return n
}

func (l *Ledger) expect(ctx context.Context, kept bool, format string, args ...any) {
	if !kept {
		l.c.RPush(ctx, l.key("complaints"), "go: "+fmt.Sprintf(format, args...))
	}
}

// alone is an exclusive visit.
func (l *Ledger) alone(ctx context.Context, token uint64) {
	l.expect(ctx, l.c.Incr(ctx, l.key("inside")).Val() == 1, "another was inside")
	l.expect(ctx, l.number(ctx, "readers") == 0, "a reader was inside")
	before := l.number(ctx, "count")
	if token > 0 {
		last := l.number(ctx, "fence")
		l.expect(ctx, token > last, "token %d came after %d", token, last)
		l.c.Set(ctx, l.key("fence"), token, 0)
	}
	if l.c.SetArgs(ctx, l.key("side"), "go", redis.SetArgs{Get: true}).Val() != "go" {
		l.c.Incr(ctx, l.key("turnovers"))
	}
	l.c.Set(ctx, l.key("count"), before+1, 0)
	l.c.Decr(ctx, l.key("inside"))
}

// reading is a visit that readers share.
func (l *Ledger) reading(ctx context.Context) {
	if l.c.Incr(ctx, l.key("readers")).Val() > 1 {
		l.c.Incr(ctx, l.key("together"))
	}
	l.expect(ctx, l.number(ctx, "inside") == 0, "a writer was inside")
	before := l.number(ctx, "count")
	l.expect(ctx, before == l.number(ctx, "count"), "the count changed while it was read")
	l.c.Decr(ctx, l.key("readers"))
}

// counted is a visit of a limited number of visitors.
func (l *Ledger) counted(ctx context.Context) {
	n := l.c.Incr(ctx, l.key("inside")).Val()
	l.expect(ctx, n <= int64(l.limit), "%d were inside", n)
	if n > 1 {
		l.c.Incr(ctx, l.key("together"))
	}
	time.Sleep(5 * time.Millisecond) // so that visits overlap
	l.c.Incr(ctx, l.key("count"))
	l.c.Decr(ctx, l.key("inside"))
}

func (l *Ledger) visit(ctx context.Context, sharing string, token uint64) {
	switch sharing {
	case Reading:
		l.reading(ctx)
	case Counted:
		l.counted(ctx)
	default:
		l.alone(ctx, token)
	}
}

// Book is the record of a ledger.
type Book struct {
	Count      uint64   // all visits that increment
	Turnovers  uint64   // exclusive visits by another side than the last
	Together   uint64   // visits that overlapped another
	Complaints []string // violations
}

func (l *Ledger) close(t *testing.T) Book {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	b := Book{l.number(ctx, "count"), l.number(ctx, "turnovers"), l.number(ctx, "together"), l.c.LRange(ctx, l.key("complaints"), 0, -1).Val()}
	for _, name := range []string{"inside", "readers", "count", "fence", "turnovers", "together", "side", "complaints"} {
		if err := l.c.Del(ctx, l.key(name)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return b
}
