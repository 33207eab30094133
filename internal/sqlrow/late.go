package sqlrow

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// LateTime is how long a statement may be under way in the server after its caller has gone: it waits for a table and for
// rows that others have locked. Dialects bound their sessions' waits so.
const LateTime = 3 * time.Second

// errLate is the answer to a release that found nothing too early to be sure.
var errLate = errors.New("nothing is held, but an attempt of this owner that got no answer may still be under way in the server")

// lateAttempts has the owners whose last attempt got no answer, for as long as it may take effect. Such an owner's release
// that finds nothing may have overtaken the attempt, so it is unknown, and is repeated.
type lateAttempts struct {
	mu    sync.Mutex
	until map[string]time.Time
	swept time.Time
}

// note notes the error of an owner's attempt.
func (l *lateAttempts) note(owner string, err error) {
	if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrUnsent) || driver.Final(err) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.swept) > LateTime { // not each time: in an outage there are many
		maps.DeleteFunc(l.until, func(_ string, until time.Time) bool { return now.After(until) })
		l.swept = now
	}
	if l.until == nil {
		l.until = map[string]time.Time{}
	}
	l.until[owner] = now.Add(LateTime)
}

// released returns the answer to an owner's release.
func (l *lateAttempts) released(owner string, err error) error {
	if !errors.Is(err, driver.ErrLost) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().Before(l.until[owner]) {
		return errLate
	}
	return err
}
