package pictures

// handoff draws a release that passes a lock on inside a process, and one that wakes another.
func handoff() string {
	const first, second, store, other, third = 120, 185, 260, 335, 400

	c := newCanvas(1000, 480, "A release wakes one waiter")
	c.small(20, 56, "start", "First inside the process, without a request. Then the process that is first in the store's queue.")
	c.lane(170, 975, first, "process 1, caller a")
	c.lane(170, 975, second, "process 1, caller b")
	c.lane(170, 975, store, "store")
	c.lane(170, 975, other, "process 2, caller c")
	c.lane(170, 975, third, "process 3, caller d")

	c.bar(180, 370, first, "a", "a holds, fence 7")
	c.bar(395, 590, second, "a", "b holds, fence 8")
	c.bar(775, 965, other, "b", "c holds, a greater fence")
	c.bar(180, 640, store, "a", "process 1 holds; fences from 7 on are reserved")
	c.bar(745, 965, store, "b", "process 2 holds")

	c.arrow(370, first+12, 394, second-13)
	c.small(394, 146, "start", "hand-off: no request")
	c.small(190, second+18, "start", "b waits in the process")
	c.arrow(592, second+12, 640, store-13)
	c.small(628, 222, "start", "release")
	c.arrow(642, store+13, 690, other-4)
	c.small(612, 300, "end", "signal to the first in the queue")
	c.arrow(695, other-4, 744, store+13)
	c.arrow(748, store+13, 775, other-13)
	c.small(775, 303, "start", "granted")
	c.small(190, other+18, "start", "c waits: one place in the queue for its process")
	c.small(190, third+18, "start", "d waits and sleeps on: it is not woken in vain")
	c.small(20, 455, "start", "After the hand-off window (3 ms) the lock goes to the store again, so that other processes get their turn.")
	return c.String()
}
