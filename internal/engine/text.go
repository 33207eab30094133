package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

const micro = int64(time.Microsecond)

func wholeMicros(d time.Duration) time.Duration {
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}

// lock is a text that was read.
type lock struct {
	claims.Lock
	version int64
	void    int64
	now     int64          // when it was so
	fresh   bool           // that is since the call began
	dead    bool           // the text also has claims that have ended
	sooner  []claims.Claim // claims that end sooner because of these
	others  time.Time      // when there was a claim of another backend, as far as is remembered
}

// letters are what lines begin with.
var letters = map[driver.Mode]string{driver.Exclusive: "\nx", driver.Write: "\nw", driver.Read: "\nr", driver.Counted: "\nc"}

var modes = map[byte]driver.Mode{'x': driver.Exclusive, 'w': driver.Write, 'r': driver.Read, 'c': driver.Counted}

// newVersion is the place, or the number of a hold, of a claim that is not written yet: behind all others.
const newVersion = claims.MaxNumber

// line is a claim as text: the letter and the owner, h and the number of its grant, or p and its place in the queue, since
// when and until when, the limit of permits, the address of its backend, and what its owner said of itself.
func (l *lock) line(c *claims.Claim) string {
	limit := 0
	if c.Mode == driver.Counted {
		limit = l.Limit
	}
	b := strconv.AppendInt(append(head(c), ' '), int64(limit), 10)
	return string(append(append(append(append(b, ' '), c.Address...), ' '), c.Meta...))
}

// head is the part of a line that a renewal changes. It has an owner's grant, so no other line has it too.
func head(c *claims.Claim) []byte {
	kind, number := " p", c.Place
	if c.Place == 0 {
		kind, number = " h", c.Fence>>claims.SpanBits
	}
	at := "\t"
	if number != newVersion {
		at = strconv.FormatInt(number, 10)
	}
	b := make([]byte, 0, 160+len(c.Meta))
	b = append(append(append(append(b, letters[c.Mode]...), c.Owner...), kind...), at...)
	for _, n := range []int64{c.Since / micro, c.Until / micro} {
		b = strconv.AppendInt(append(b, ' '), n, 10)
	}
	return b
}

// parse adds the claim of a line, without its line break.
func (l *lock) parse(line string, whole bool) error {
	f := strings.SplitN(line, " ", 7)
	if !whole || len(f) < 7 || len(f[0]) < 2 || len(f[1]) < 2 || modes[f[0][0]] == 0 || f[1][0] != 'p' && f[1][0] != 'h' {
		return fmt.Errorf("line %s", driver.Quote(line))
	}
	var n [4]int64
	for i, text := range []string{f[1][1:], f[2], f[3], f[4]} {
		var err error
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil || n[i] < 0 || n[i] > claims.Forever/micro || i == 0 && n[i] == 0 {
			return fmt.Errorf("number %s in line %s", driver.Quote(text), driver.Quote(line))
		}
	}
	c := claims.Claim{Owner: f[0][1:], Mode: modes[f[0][0]], Since: n[1] * micro, Until: n[2] * micro, Address: f[5], Meta: f[6]}
	if f[1][0] == 'p' {
		c.Place = n[0]
	} else if c.Fence = n[0] << claims.SpanBits; n[0] > claims.MaxNumber {
		return fmt.Errorf("number %d", n[0])
	}
	if c.Mode == driver.Counted {
		l.Limit = int(n[3])
	}
	l.Claims = append(l.Claims, c)
	return nil
}

// see decodes what a call has seen, without the claims that have ended by then.
func see(seen Seen) (*lock, error) {
	l := &lock{version: seen.Version, void: seen.Void, now: seen.Now, fresh: true}
	l.Number = seen.Version
	for i, line := range strings.Split(seen.Text, "\n") {
		if i == 0 && line == "" {
			continue
		}
		if err := l.parse(line, i > 0); err != nil {
			return nil, fmt.Errorf("%w: the text of the lock was changed by another program: %w", driver.ErrInvalid, err)
		}
	}
	l.expire()
	l.Sort()
	return l, nil
}

func (l *lock) expire() {
	n, sooner := l.Expire(l.now * micro)
	l.dead, l.sooner = l.dead || n > 0, append(l.sooner, sooner...)
}

// since is Change.Since of a change that replaces the lock's text.
func (l *lock) since() int64 {
	if l.fresh && l.dead {
		return l.now
	}
	return 0
}

// text encodes all claims, and returns when the last of them ends.
func (l *lock) text() (text string, until int64) {
	var all strings.Builder
	for i := range l.Claims {
		all.WriteString(l.line(&l.Claims[i]))
		until = max(until, l.Claims[i].Until/micro)
	}
	return all.String(), until
}

// clone returns a lock that changes apart from l.
func (l *lock) clone() *lock {
	c := *l
	c.Claims, c.sooner = slices.Clone(l.Claims), slices.Clone(l.sooner)
	return &c
}

// wakes returns whom the lock lets in.
func (l *lock) wakes(name string) (list []Wake) {
	places, _ := l.LetsIn()
	for _, p := range places {
		list = append(list, Wake{name, p.Owner, p.Address})
	}
	return list
}

// became returns the lock as it is after a change that was to make it l, with a claim of owner. If that is Untold, only owner's
// claim is known.
func (l *lock) became(out Outcome, owner string) (*lock, error) {
	if !out.Done || out.Other && !out.Untold {
		return see(out.Seen)
	}
	c := l.Claim(owner)
	switch {
	case c == nil:
	case c.Place == newVersion:
		c.Place = out.Seen.Version
	case c.Fence>>claims.SpanBits == newVersion:
		c.Fence = out.Seen.Version << claims.SpanBits
	}
	l.version, l.Number, l.now, l.fresh, l.sooner = out.Seen.Version, out.Seen.Version, out.Seen.Now, true, nil
	l.void = max(l.void, out.Seen.Void)
	l.expire()
	l.Sort()
	return l, nil
}
