package pictures

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
