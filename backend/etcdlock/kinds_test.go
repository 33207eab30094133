package etcdlock

import (
	"testing"

	"github.com/distlock/distlock/driver"
)

// A place in line that others count as a reader's can't become a writer's: who came after it
// may have been let in beside it.
func TestReaderInLineStaysReader(t *testing.T) {
	b := shared(t)
	first := request("", driver.Write)
	acquire(t, b, first)
	turncoat, reader := queued(request(first.Name, driver.Read)), queued(request(first.Name, driver.Read))
	refused(t, b, turncoat, driver.ErrHeld)
	refused(t, b, reader, driver.ErrHeld)
	release(t, b, first)
	acquire(t, b, reader)
	turncoat.Mode = driver.Write
	refused(t, b, turncoat, driver.ErrUnsupported)
	turncoat.Mode = driver.Read
	acquire(t, b, turncoat)
}

// What an Owner has by another connection does not change its kind, nor its limit.
func TestOwnersKeyKeepsItsKind(t *testing.T) {
	b, other := shared(t), shared(t)
	for _, queue := range []bool{false, true} {
		permit := request("", driver.Counted)
		acquire(t, b, permit)
		acquire(t, b, request(permit.Name, driver.Counted))
		for _, change := range []func(*driver.Request){
			func(r *driver.Request) { r.Mode = driver.Exclusive },
			func(r *driver.Request) { r.Mode = driver.Write },
			func(r *driver.Request) { r.Limit = 3 },
		} {
			r := permit
			r.Queue = queue
			change(&r)
			refused(t, other, r, driver.ErrInvalid)
		}
		if all := storedKeys(t, b, permit.Name); len(all) != 2 || all[0].mode != driver.Counted || all[0].Limit != 2 {
			t.Errorf("queue %v: %+v", queue, all)
		}
	}
}
