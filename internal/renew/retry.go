package renew

import (
	"cmp"
	"container/list"
	"slices"
)

// retryQueue has the holds without an answer that are due again, and wait for room among the retries. What it does takes
// as long for many holds as for few: there are few kinds.
type retryQueue map[retryKind]*list.List

// retryKind is what the holds of one call have in common. It does not change while a hold waits.
type retryKind struct {
	tries int32
	scale int
}

func (h *Hold) retryKind() retryKind { return retryKind{h.tries, h.scale()} }

func (q retryQueue) push(h *Hold) {
	kind := h.retryKind()
	if q[kind] == nil {
		q[kind] = list.New()
	}
	h.waiting = q[kind].PushBack(h)
}

// remove takes h out, and reports whether it was in.
func (q retryQueue) remove(h *Hold) bool {
	if h.waiting == nil {
		return false
	}
	kind := h.retryKind()
	q[kind].Remove(h.waiting)
	h.waiting = nil
	if q[kind].Len() == 0 {
		delete(q, kind)
	}
	return true
}

func (q retryQueue) len() (n int) {
	for _, holds := range q {
		n += holds.Len()
	}
	return n
}

// pop takes out holds of one kind, most of them at most: those with the fewest tries.
func (q retryQueue) pop(most int) (holds []*Hold) {
	kinds := make([]retryKind, 0, len(q))
	for kind := range q {
		kinds = append(kinds, kind)
	}
	first := slices.MinFunc(kinds, func(a, b retryKind) int {
		return cmp.Or(cmp.Compare(a.tries, b.tries), cmp.Compare(a.scale, b.scale))
	})
	for len(holds) < most && q[first] != nil {
		h := q[first].Front().Value.(*Hold)
		q.remove(h)
		holds = append(holds, h)
	}
	return holds
}
