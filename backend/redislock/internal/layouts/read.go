package layouts

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Snapshot is what Redis keeps under a name.
type Snapshot struct {
	Kind    string        // the key's type, or "semaphore" in the layout "redisson"
	Now     time.Duration // since 1970, by the server's clock
	Left    int64         // ms, of the key
	Value   string
	Holders []Written
	Waiters []driver.Holder
}

// Written is a holder as a hash or the permits of a semaphore have it.
type Written struct {
	Name string // field or permit id
	Left int64  // ms
	Note string
}

// Waiter returns a waiter of a queue, whose ticket ends in left ms.
func (l *Layout) Waiter(written string, left int64) driver.Holder {
	h := driver.Holder{Owner: OwnerOf(written), Mode: driver.Exclusive, Held: -1, Left: LifeLeft(left)}
	if !l.Redisson && len(written) > OwnerLen {
		h.Owner, h.Mode = written[:OwnerLen], placeModes[written[OwnerLen]]
	}
	return h
}

// placeModes are the modes of the waiters of the layout "string", whose letters stand behind the Owner.
var placeModes = map[byte]driver.Mode{'w': driver.Write, 'r': driver.Read, 'p': driver.Counted}

// Shares reports whether the owner of a place in the queue shares the lock with others.
func Shares(place string) bool {
	return len(place) > OwnerLen && !placeModes[place[OwnerLen]].Alone()
}

// Together returns those at the head of a queue that may hold together. They share the lock.
func Together(places []string) []string {
	if len(places) == 0 || !Shares(places[0]) {
		return places[:min(1, len(places))]
	}
	kind, room := places[0][OwnerLen:], len(places)
	if limit, err := strconv.Atoi(kind[1:]); err == nil {
		room = min(room, limit)
	}
	n := 1
	for n < room && Shares(places[n]) && places[n][OwnerLen:] == kind {
		n++
	}
	return places[:n]
}

// Shared reads the marker of a lock that is held by readers or permits: false for any other string.
func Shared(value string) (mode driver.Mode, limit int, ok bool) {
	if value == "shared read" {
		return driver.Read, 0, true
	}
	number, ok := strings.CutPrefix(value, "shared permits ")
	limit, err := strconv.Atoi(number)
	return driver.Counted, limit, ok && err == nil
}

// Info describes a lock; nil if s is no lock of this layout. Locks of other libraries are locks too.
func (l *Layout) Info(name string, s Snapshot) *driver.Info {
	if !l.isLock(s) {
		return nil
	}
	info := &driver.Info{Name: name, WaiterCount: -1}
	switch s.Kind {
	case "string":
		if mode, limit, ok := Shared(s.Value); ok {
			info.Mode, info.Limit = mode, limit
			l.showShared(info, s)
		} else if !l.Redisson { // otherwise the free permits of a semaphore without holders
			h := l.StringHolder(s.Value, s.Now, s.Left)
			info.Mode, info.Holders = h.Mode, []driver.Holder{h}
		}
	case "semaphore":
		l.showSemaphore(info, s)
	case "hash":
		l.showHash(info, s)
	}
	if len(s.Waiters) > 0 {
		info.Waiters, info.WaiterCount = s.Waiters, len(s.Waiters)
	}
	return info
}

func (l *Layout) isLock(s Snapshot) bool {
	switch s.Kind {
	case "none", "semaphore":
		return true
	case "string":
		_, err := strconv.Atoi(s.Value)
		return !l.Redisson && IsLockString(s.Value, s.Left) || l.Redisson && err == nil && s.Left == -1 // free permits
	case "hash":
		return l.Redisson && ((s.Value == "read" || s.Value == "write") && s.Left != -1 || s.Value == "" && len(s.Holders) == 1 && fieldForm().MatchString(s.Holders[0].Name))
	}
	return false
}

// StringHolder reads the value of a string lock, of distlock or of another program.
func (l *Layout) StringHolder(value string, now time.Duration, left int64) driver.Holder {
	h := driver.Holder{Mode: driver.Exclusive, Held: -1, Left: LifeLeft(left)}
	note, write := strings.CutSuffix(value, "w")
	if !noteForm().MatchString(value) || !l.readNote(note, now, &h) {
		h.Owner, h.Foreign = value, true
	} else if write {
		h.Mode = driver.Write
	}
	return h
}

// showShared describes readers or permits. If it is not known who they are, the marker stands for them.
func (l *Layout) showShared(info *driver.Info, s Snapshot) {
	for _, w := range s.Holders {
		l.show(info, info.Mode, w.Name, w, s.Now)
	}
	if len(info.Holders) == 0 {
		l.show(info, info.Mode, s.Value, Written{Left: s.Left}, s.Now)
		info.Holders[0].Foreign = true
	}
}

func (l *Layout) showSemaphore(info *driver.Info, s Snapshot) {
	for _, p := range s.Holders {
		l.show(info, driver.Counted, PermitOwner(p.Name), p, s.Now)
	}
	if free, err := strconv.Atoi(s.Value); err == nil && len(info.Holders) > 0 {
		info.Mode, info.Limit = driver.Counted, free+len(info.Holders)
	}
}

func (l *Layout) showHash(info *driver.Info, s Snapshot) {
	for _, f := range s.Holders {
		mode := driver.Exclusive
		switch {
		case strings.HasSuffix(f.Name, ":write"):
			mode = driver.Write
		case s.Value != "":
			mode = driver.Read
		}
		l.show(info, mode, OwnerOf(f.Name), f, s.Now)
		// A Java writer that also reads is a writer.
		if info.Mode != driver.Write {
			info.Mode = mode
		}
	}
}

func (l *Layout) show(info *driver.Info, mode driver.Mode, owner string, w Written, now time.Duration) {
	h := driver.Holder{Held: -1}
	if !l.readNote(w.Note, now, &h) || h.Owner != owner {
		h = driver.Holder{Held: -1}
	}
	h.Owner, h.Mode, h.Left = owner, mode, LifeLeft(w.Left)
	info.Holders = append(info.Holders, h)
}

// LifeLeft reads PTTL's answer: -1 if the key has no TTL.
func LifeLeft(ms int64) time.Duration {
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// Held returns the error for a lock that PTTL gives left ms.
func Held(left int64, holders ...driver.Holder) *driver.HeldError {
	e := &driver.HeldError{Holders: holders}
	if d := LifeLeft(left); d >= 0 {
		// The key ends in the course of its last millisecond.
		e.Retry = d + time.Millisecond
	}
	return e
}

// maxToken is the length of the longest token that another library is expected to write.
const maxToken = 1024

const uuidForm = `[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`

// The forms of what a lock's key stores. They are compiled on first use: that costs more than all else that
// the package does at the start of a program.
var (
	noteStart = form(`^` + uuidForm + ` $`)
	noteForm  = form(`^` + uuidForm + ` [^ ]* [0-9,-]*w?$`)
	fieldForm = form(`^` + uuidForm + `:-?[0-9]+$`)            // of Redisson's hashes
	tokenForm = form(`^(?:` + uuidForm + `|[0-9a-fA-F]{32})$`) // redis-py's may have no TTL
)

func form(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// StartsNote reports whether a note may begin so, with OwnerLen bytes and one more.
func StartsNote(start string) bool { return noteStart().MatchString(start) }

// IsLockString reports whether a string may be a lock: distlock's own, or the token of another
// library or script. left is PTTL's answer. scripts/foreign.lua has the same rule.
//
// Tokens are arbitrary strings, so a string with a TTL counts as one unless it is a JSON object,
// or long. Without a TTL it has to look like one.
func IsLockString(value string, left int64) bool {
	switch {
	case noteForm().MatchString(value):
		return true
	case left == -1:
		return tokenForm().MatchString(value)
	}
	return len(value) <= maxToken && !(strings.HasPrefix(value, "{") && strings.HasSuffix(value, "}"))
}

// NoToken describes a string that is no token.
func NoToken(left int64) string {
	if left == -1 {
		return "a string without a TTL"
	}
	return "a string that is no token"
}

// NoLock returns the error for a key whose data are no lock of the requested kind.
func NoLock(key, data string) error {
	return fmt.Errorf("%w: the key %s holds %s: this is other data, or a lock in an unknown form; use another name, or keep locks apart from other data by a prefix, such as ?prefix=locks: in the URL, or Options.Prefix",
		driver.ErrInvalid, driver.Quote(key), data)
}
