package distlock

// holdQueue is a heap by when a hold is to be looked at.
type holdQueue []*hold

func (q holdQueue) Len() int           { return len(q) }
func (q holdQueue) Less(i, j int) bool { return q[i].at() < q[j].at() }
func (q holdQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].r.index, q[j].r.index = i, j
}
func (q *holdQueue) Push(x any) {
	h := x.(*hold)
	h.r.index = len(*q)
	*q = append(*q, h)
}
func (q *holdQueue) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	h.r.index = -1
	return h
}

func (h *hold) at() instant { return min(h.r.next, h.trust()) }
