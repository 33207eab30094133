package zk

// fifo is calls in the order of their answers.
type fifo struct {
	list []*call
	head int
}

func (q *fifo) push(k *call) { q.list = append(q.list, k) }

// first is the call that is answered next; nil: none is.
func (q *fifo) first() *call {
	if q.head == len(q.list) {
		return nil
	}
	return q.list[q.head]
}

func (q *fifo) pop() *call {
	k := q.first()
	if k == nil {
		return nil
	}
	q.list[q.head] = nil
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	} else if q.head >= 64 && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	return k
}
