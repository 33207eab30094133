package quorum

import "sync"

// news counts the members that learnt by themselves that a hold is gone, and passes the
// word on when those that are left are no majority.
type news struct {
	mu    sync.Mutex
	gone  []bool // by member
	bound int    // so many may go
	tell  func() // nil once it was called
}

func newNews(members, majority int, tell func()) *news {
	if tell == nil {
		return nil
	}
	return &news{gone: make([]bool, members), bound: members - majority, tell: tell}
}

// at is what member i is to call; nil if nobody wants to know.
func (n *news) at(i int) func() {
	if n == nil {
		return nil
	}
	return func() { n.lost(i) }
}

func (n *news) lost(i int) {
	n.mu.Lock()
	n.gone[i] = true
	count := 0
	for _, gone := range n.gone {
		if gone {
			count++
		}
	}
	var tell func()
	if count > n.bound {
		tell, n.tell = n.tell, nil
	}
	n.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// back says that member i has the hold again.
func (n *news) back(i int) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone[i] = false
}
