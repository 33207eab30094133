// Package chart draws the few kinds of charts that the documents use, as SVG without embedded fonts.
//
// The files follow the reader's light or dark mode, and have no background of their own.
package chart

import (
	"bytes"
	"image/color"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Axis describes one axis. A logarithmic axis leaves out values that are not positive.
type Axis struct {
	Label string
	Log   bool
}

// Series is one line of Curves, or one bar in each group of Bars.
type Series struct {
	Name  string
	X     []float64 // unused by Bars
	Y     []float64 // NaN and infinite values are left out
	Color int       // a place in the palette, from 0 on; the same in all charts that show the same thing
	Bold  bool      // a thicker line than the others
}

// Text and lines have these colors while they are drawn. Then restyle replaces them by the reader's.
var (
	ink  = color.RGBA{0x01, 0x01, 0x01, 255}
	rule = color.RGBA{0x02, 0x02, 0x02, 255}
)

var restyled = strings.NewReplacer(
	"fill:#010101", "fill:currentColor",
	"stroke:#020202", "stroke:currentColor;stroke-opacity:.18",
	// Fonts of the same widths, for readers without the one that was measured.
	"font-family:Liberation Sans;font-variant:normal;font-weight:normal;font-style:normal",
	"font-family:Liberation Sans,Arial,Helvetica,sans-serif",
)

// modes is the color of text in light and dark mode.
const modes = `<style>svg{color:#24292f}@media(prefers-color-scheme:dark){svg{color:#d1d7e0}}</style>
`

// palette has colors that stand out from white and from black, and differ in brightness for readers who
// do not tell all colors apart.
var palette = []color.Color{
	color.RGBA{0x2f, 0x81, 0xf7, 255}, // blue
	color.RGBA{0xe3, 0x77, 0x1f, 255}, // orange
	color.RGBA{0x2c, 0xa0, 0x5a, 255}, // green
	color.RGBA{0xd6, 0x45, 0x93, 255}, // pink
	color.RGBA{0x8b, 0x93, 0x9c, 255}, // grey
	color.RGBA{0x94, 0x67, 0xd8, 255}, // violet
	color.RGBA{0xb5, 0x8a, 0x12, 255}, // ochre
	color.RGBA{0x17, 0x9b, 0xa8, 255}, // teal
	color.RGBA{0xd0, 0x3b, 0x3b, 255}, // red
	color.RGBA{0x8a, 0x5a, 0x3c, 255}, // brown
}

func paint(place int) color.Color { return palette[place%len(palette)] }

// Sizes in points.
const (
	width     = 600
	textSize  = 10
	titleSize = 12
	margin    = 6
)

// newPlot returns a plot with the common style and without a legend, which render draws.
func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.Title.Text = title
	p.Title.Padding = 8
	restyleText(&p.Title.TextStyle, titleSize)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		restyleText(&a.Label.TextStyle, textSize)
		restyleText(&a.Tick.Label, textSize)
		a.LineStyle.Color, a.Tick.LineStyle.Color = rule, rule
		a.Label.Padding, a.Padding = 4, 6
		a.Tick.Length = 0
	}
	return p
}

// restyleText leaves the alignment as it is.
func restyleText(s *text.Style, size font.Length) {
	s.Color = ink
	s.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// render draws the plot, with the legend at its right side, and returns the SVG.
func render(p *plot.Plot, legend plot.Legend, height vg.Length) ([]byte, error) {
	canvas := vgsvg.New(width, height)
	all := draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)
	restyleText(&legend.TextStyle, textSize)
	legend.ThumbnailWidth = 16
	legend.YOffs, legend.Padding = -titleSize-14, 4 // below the title's line
	legend.Top, legend.Left = true, true
	beside := vg.Length(0)
	if size := legend.Rectangle(all).Size().X; size > 0 {
		beside = size + 3*margin
		legend.Draw(draw.Crop(all, width-2*margin-size-margin, 0, 0, 0))
	}
	p.Draw(draw.Crop(all, 0, -beside, 0, 0))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	return restyle(out.Bytes()), nil
}

// restyle gives text and lines the color of the reader's mode.
func restyle(svg []byte) []byte {
	s := restyled.Replace(string(svg))
	const start = "<svg"
	end := strings.Index(s, start)
	end += strings.Index(s[end:], ">\n") + len(">\n")
	return []byte(s[:end] + modes + s[end:])
}
