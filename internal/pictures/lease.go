package pictures

// lease draws a lease with its real proportions: a TTL is 450 px, the margin a tenth of it, and a
// renewal is due after a third.
func lease() string {
	const ttl, margin, due = 450, 45, 150
	const program, store = 215, 345
	const sent, arrived, answered = 100, 135, 165 // the request for the lock
	const resent, rearrived, reanswered = sent + due, sent + due + 35, sent + due + 65
	const deadline = resent + ttl - margin // of the renewal that was answered
	const end = rearrived + ttl            // of the TTL at the store

	c := newCanvas(1000, 470, "How long a lease is trusted, and how long the store keeps it")
	c.small(20, 56, "start", "The program counts a TTL from before it sends, and the store from when it receives. So the program stops first.")
	c.zone(deadline, end, 190, 370)
	c.lane(90, 975, program, "program")
	c.lane(90, 975, store, "store")

	c.measure(sent, sent+ttl, 105, "one TTL from before the request was sent")
	c.measure(resent, deadline, 140, "one TTL less the margin, from before the renewal was sent")
	c.measure(deadline, deadline+margin, 140, "margin")
	c.instant(sent, 101, program)
	c.instant(resent, 136, program)

	c.bar(answered, deadline, program, "a", "A holds: the lease's context is alive")
	c.bar(arrived, end, store, "a", "the lock is A's")
	c.bar(end+20, 965, store, "b", "B's, next fence")

	c.arrow(sent, program, arrived, store-13)
	c.arrow(arrived, store-13, answered, program+13)
	c.arrow(resent, program+13, rearrived, store-13)
	c.arrow(rearrived, store-13, reanswered, program+13)
	c.lost(resent+due, program+13, resent+due+20, 285)
	c.lost(resent+due+75, program+13, resent+due+95, 285)
	c.lost(resent+due+150, program+13, resent+due+170, 285)
	c.small(sent+8, 262, "end", "request")
	c.small(answered+2, 262, "start", "grant")
	c.small(reanswered+4, 262, "start", "renewal,", "after TTL/3")
	c.small(resent+due+60, 310, "start", "later renewals get no answer")

	c.instant(deadline, 136, 395)
	c.instant(end, 190, 395)
	c.measure(rearrived, end, 395, "one TTL from when the renewal arrived")
	c.text(deadline+6, 170, "bad", "start", "deadline: A's context ends")
	c.text(end+6, 395, "bad", "start", "the TTL ends: free for B")
	c.small(20, 430, "start",
		"Shaded: A has stopped, and B cannot have begun. Latency and the margin make it wide; a program that is paused beyond it,",
		"or that does not stop when its context ends, needs a fence as well.")
	return c.String()
}
