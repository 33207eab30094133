package etcdlock

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// lockQueue are the keys of a lock in the order in which they were created: those who hold,
// then those who stand in line.
type lockQueue []lockKey

func parseQueue(folder string, kvs []*mvccpb.KeyValue) lockQueue {
	var all lockQueue
	for _, kv := range kvs {
		if e, ok := parseKey(folder, kv); ok {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b lockKey) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.key, b.key))
	})
	return all
}

// find is the first key of an owner; -1 if there is none.
func (all lockQueue) find(owner string) int {
	return slices.IndexFunc(all, func(e lockKey) bool { return e.owner == owner })
}

// blocker is the last of the keys ahead that keeps a request out; nil if it is let in.
func blocker(ahead lockQueue, mode driver.Mode, limit int) *lockKey {
	permits := 0
	for i := len(ahead) - 1; i >= 0; i-- {
		e := &ahead[i]
		switch {
		case mode == driver.Read && e.mode == driver.Read:
		case mode == driver.Counted && e.mode == driver.Counted && e.Limit == limit:
			permits++
		default:
			return e
		}
	}
	if mode == driver.Counted && permits >= limit {
		return &ahead[len(ahead)-1]
	}
	return nil
}

// checkHolders refuses a request that can't go with who holds. The keys of other programs
// keep out every kind, and are in nobody's way longer than they last.
func checkHolders(ahead lockQueue, r *driver.Request) error {
	i := slices.IndexFunc(ahead, func(e lockKey) bool { return !e.foreign })
	if i < 0 {
		return nil
	}
	return checkKind(ahead[i].mode, ahead[i].Limit, r)
}

// checkKind refuses a request for another kind of lock, or another limit, than is in use.
func checkKind(mode driver.Mode, limit int, r *driver.Request) error {
	switch {
	case !mode.SameKind(r.Mode):
		return fmt.Errorf("%w: %s is in use as %v, asked for as %v", driver.ErrInvalid, driver.Quote(r.Name), mode, r.Mode)
	case r.Mode == driver.Counted && limit != r.Limit:
		return fmt.Errorf("%w: %s is in use with limit %d, asked for with %d", driver.ErrInvalid, driver.Quote(r.Name), limit, r.Limit)
	}
	return nil
}

// checkConversion refuses what the Owner's own key can't become. A reader's never becomes a
// writer's, not even in line: others may have been let in beside it.
func checkConversion(mode driver.Mode, limit int, r *driver.Request) error {
	if mode == driver.Read && r.Mode == driver.Write {
		return errUpgrade
	}
	return checkKind(mode, limit, r)
}

// holderCount is how many from the front hold: the first, and those who share with it.
func (all lockQueue) holderCount() int {
	n := min(len(all), 1)
	for n < len(all) && all[n].shares(&all[0], n) {
		n++
	}
	return n
}

// shares reports whether e holds beside the first if so many hold before it, all of the
// first one's kind.
func (e *lockKey) shares(first *lockKey, before int) bool {
	switch e.mode {
	case driver.Read:
		return first.mode == driver.Read
	case driver.Counted:
		return first.mode == driver.Counted && e.Limit == first.Limit && before < e.Limit
	}
	return false
}

// heldError is the refusal by those who hold.
func (all lockQueue) heldError() error {
	e := &driver.HeldError{}
	for i := range all.holderCount() {
		e.Holders = append(e.Holders, all[i].holder())
	}
	return e
}
