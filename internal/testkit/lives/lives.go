// Package lives makes backends that set the life of a hold, also to less than is left, as no driver may.
package lives

import (
	"context"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
)

// Lives knows when the holds of a store end. Its zero value is ready for use, and is safe for concurrent use.
type Lives struct {
	mu   sync.Mutex
	ends map[string]time.Time // by Owner
}

// Ask notes a grant or a renewal of h that was asked for: with sets, h lives for its TTL from now on, and else
// for at least that. It has h released by b when that is over. A life that is set ends a nanosecond early, before all that
// virtual time lets happen at its end.
func (l *Lives) Ask(b driver.Backend, h driver.Hold, sets bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends == nil {
		l.ends = map[string]time.Time{}
	}
	life := h.TTL
	if sets {
		life--
	}
	if end := time.Now().Add(life); sets || end.After(l.ends[h.Owner]) {
		l.ends[h.Owner] = end
	}
	time.AfterFunc(life, func() {
		if l.over(h.Owner) {
			b.Release(context.Background(), h)
		}
	})
}

func (l *Lives) over(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !time.Now().Before(l.ends[owner])
}
