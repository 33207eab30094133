// Package pictures draws the diagrams of the documents as SVG.
//
//	lease.svg     how long a lease is trusted, and how long the store keeps it
//	handoff.svg   which waiter a release wakes
//	oversell.svg  what the demo shows, without a lock and with one
//	failover.svg  two holders after a failover, and the fence that saves the data
//
// Each drawing has its own background and follows the reader's preference for light or dark, so that
// it is readable on any page.
package pictures

import (
	"fmt"
	"strings"
)

// Pictures returns the drawings by their file names.
func Pictures() map[string]string {
	return map[string]string{
		"lease.svg":    lease(),
		"handoff.svg":  handoff(),
		"failover.svg": failover(),
		"oversell.svg": oversell(),
	}
}

// style has the colours of Okabe and Ito, which people with a colour vision deficiency can tell apart, and
// a variant for dark pages.
const style = `<style>
.back{fill:#fff;stroke:#d0d7de}.t{fill:#1f2328}.m{fill:#59636e}.lane{stroke:#afb8c1}.go{stroke:#1f2328}
.a{fill:#0072b2}.b{fill:#007a59}.bad{fill:#c04a00}.badline{stroke:#c04a00}.in{fill:#fff}.zone{fill:#e69f00;fill-opacity:.22}
@media(prefers-color-scheme:dark){
.back{fill:#0d1117;stroke:#3d444d}.t{fill:#f0f6fc}.m{fill:#9198a1}.lane{stroke:#656c76}.go{stroke:#f0f6fc}
.a{fill:#4aa8e0}.b{fill:#2fbf97}.bad{fill:#ff8f4d}.badline{stroke:#ff8f4d}.in{fill:#0d1117}.zone{fill-opacity:.28}}
</style>`

// canvas is a drawing. Positions are in px from the top left.
type canvas struct{ b strings.Builder }

// newCanvas begins a drawing with a title, which screen readers read.
func newCanvas(width, height int, title string) *canvas {
	c := &canvas{}
	c.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica,Arial,sans-serif" font-size="14" role="img">`, width, height)
	c.add(`<title>%s</title>`, title)
	c.add("%s", style)
	for _, class := range []string{"go", "bad"} {
		paint := map[string]string{"go": "t", "bad": "bad"}[class]
		c.add(`<marker id="%s" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" class="%s"/></marker>`, class, paint)
	}
	c.add(`<rect x=".5" y=".5" width="%d" height="%d" rx="8" class="back"/>`, width-1, height-1)
	c.add(`<text x="20" y="34" font-size="19" class="t">%s</text>`, title)
	return c
}

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(&c.b, format+"\n", args...) }

func (c *canvas) String() string { return c.b.String() + "</svg>\n" }

// text writes a line. class is its colour; anchor is start, middle or end.
func (c *canvas) text(x, y int, class, anchor, text string) {
	c.add(`<text x="%d" y="%d" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, text)
}

// small writes lines of explanation, 17 px apart.
func (c *canvas) small(x, y int, anchor string, lines ...string) {
	for i, line := range lines {
		c.add(`<text x="%d" y="%d" class="m" font-size="13" text-anchor="%s">%s</text>`, x, y+17*i, anchor, line)
	}
}

// lane draws the line of one party, with its name before it.
func (c *canvas) lane(x1, x2, y int, name string) {
	c.text(20, y+5, "t", "start", name)
	c.add(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="lane"/>`, x1, y, x2, y)
}

// bar draws a span of time on a lane, with a label in it.
func (c *canvas) bar(x1, x2, y int, class, label string) {
	c.add(`<rect x="%d" y="%d" width="%d" height="24" rx="3" class="%s"/>`, x1, y-12, x2-x1, class)
	if label != "" {
		c.text((x1+x2)/2, y+5, "in", "middle", label)
	}
}

// arrow draws a message.
func (c *canvas) arrow(x1, y1, x2, y2 int) {
	c.add(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="go" stroke-width="1.6" marker-end="url(#go)"/>`, x1, y1, x2, y2)
}

// lost draws a message that does not arrive.
func (c *canvas) lost(x1, y1, x2, y2 int) {
	c.add(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="badline" stroke-width="1.6" stroke-dasharray="5 4"/>`, x1, y1, x2, y2)
	c.add(`<path d="M%d %dl10 10m0 -10l-10 10" class="badline" stroke-width="2.2"/>`, x2-5, y2-5)
}

// refused draws a message that is refused.
func (c *canvas) refused(x1, y1, x2, y2 int) {
	c.add(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="badline" stroke-width="1.6" marker-end="url(#bad)"/>`, x1, y1, x2, y2)
}

// instant draws an instant across the lanes.
func (c *canvas) instant(x, y1, y2 int) {
	c.add(`<line x1="%d" y1="%d" x2="%d" y2="%d" class="badline" stroke-width="1.4" stroke-dasharray="2 3"/>`, x, y1, x, y2)
}

// measure draws a distance with its name above it.
func (c *canvas) measure(x1, x2, y int, label string) {
	c.add(`<path d="M%d %dv8m0 -4H%dm0 -4v8" fill="none" class="lane"/>`, x1, y-4, x2)
	c.add(`<text x="%d" y="%d" class="m" font-size="13" text-anchor="middle">%s</text>`, (x1+x2)/2, y-7, label)
}

// zone draws a background between two instants.
func (c *canvas) zone(x1, x2, y1, y2 int) {
	c.add(`<rect x="%d" y="%d" width="%d" height="%d" class="zone"/>`, x1, y1, x2-x1, y2-y1)
}

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

// failover draws two holders after a failover of Redis, and the data's guard that refuses the older one.
func failover() string {
	const a, primary, replica, b, data = 115, 190, 255, 330, 405

	c := newCanvas(1000, 500, "A failover makes two holders. The fence saves the data")
	c.small(20, 56, "start", "Redis answers before its replica has the lock. If the primary dies then, the replica knows nothing of A.")
	c.zone(520, 905, 95, 425)
	c.small(712, 90, "middle", "two holders, until A's next renewal is refused")
	c.lane(150, 975, a, "A")
	c.lane(150, 975, primary, "Redis, primary")
	c.lane(150, 975, replica, "Redis, replica")
	c.lane(150, 975, b, "B")
	c.lane(150, 975, data, "data, guarded")

	c.arrow(165, a+12, 195, primary-13)
	c.arrow(200, primary-13, 225, a+13)
	c.bar(225, 905, a, "a", "A holds, fence 33")
	c.bar(195, 380, primary, "a", "")
	c.text(325, primary+5, "in", "middle", "A's lock")
	c.lost(330, primary+12, 345, 226)
	c.small(360, 231, "start", "not copied yet")
	c.text(390, primary+5, "bad", "start", "dies")
	c.add(`<path d="M375 %dl12 24m0 -24l-12 24" class="badline" stroke-width="2.5"/>`, primary-12)
	c.bar(430, 515, replica, "m", "primary")
	c.bar(515, 965, replica, "b", "B's lock")
	c.arrow(485, b-12, 512, replica+13)
	c.arrow(518, replica+13, 540, b-13)
	c.bar(540, 965, b, "b", "B holds, fence 34")

	c.arrow(265, a+13, 290, data-13)
	c.bar(160, 290, data, "m", "stock 100")
	c.bar(290, 575, data, "a", "guard 33, stock 100")
	c.arrow(550, b+13, 575, data-13)
	c.bar(575, 710, data, "b", "guard 34, 100")
	c.arrow(685, b+13, 710, data-13)
	c.bar(710, 965, data, "b", "guard 34, stock 90")
	c.refused(800, a+13, 825, data-14)
	c.small(253, 300, "end", "A reads", "with 33")
	c.small(545, 372, "end", "B reads with 34")
	c.small(713, 372, "start", "B writes 90")
	c.text(792, 160, "bad", "end", "A writes 99 with 33")
	c.text(825, 445, "bad", "middle", "refused: 33 is less than 34")
	c.small(20, 475, "start", "Without the guard, A's 99 would stand: B's ten sold, and still in stock. Fences increase over the failover too.")
	return c.String()
}
