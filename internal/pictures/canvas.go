package pictures

import (
	"fmt"
	"strings"
)

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
