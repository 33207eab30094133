package pictures

import "fmt"

// oversell draws what "distlock demo oversell" shows: which buyer bought which item, without a lock and with one.
func oversell() string {
	c := newCanvas(1000, 330, "Five items, four buyers, each in a process of its own")
	c.small(20, 56, "start", "$ distlock demo oversell")
	const left, right, top, row = 20, 520, 108, 34
	c.text(left, 90, "bad", "start", "without a lock")
	c.text(right, 90, "b", "start", "with a lock")
	for i := range 5 {
		item, y := 5-i, top+row*i
		c.text(left, y+17, "t", "start", fmt.Sprintf("item %d", item))
		c.text(right, y+17, "t", "start", fmt.Sprintf("item %d", item))
		for n := range 4 {
			buyer, class, label := (i+n)%4+1, "bad", "sold before"
			if n == 0 {
				class, label = "a", "sold"
			}
			c.sale(left+60+102*n, y, 98, class, fmt.Sprintf("%d: %s", buyer, label))
		}
		c.sale(right+60, y, 98, "b", fmt.Sprintf("%d: sold", i%4+1))
		c.small(right+172, y+17, "start", fmt.Sprintf("fence %d", 41+i))
	}
	c.text(left, top+row*5+24, "bad", "start", "20 sold: 15 too many")
	c.text(right, top+row*5+24, "b", "start", "5 sold, and each fence is greater than the one before")
	return c.String()
}

// sale draws a sale, with its buyer in it.
func (c *canvas) sale(x, y, width int, class, label string) {
	c.add(`<rect x="%d" y="%d" width="%d" height="26" rx="3" class="%s"/>`, x, y, width, class)
	c.add(`<text x="%d" y="%d" class="in" font-size="12" text-anchor="middle">%s</text>`, x+width/2, y+17, label)
}
