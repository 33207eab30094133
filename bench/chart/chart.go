// Package chart draws the curves that the documents use, as SVG without embedded fonts.
//
// The files follow the reader's light or dark mode, and have no background of their own.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
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

// Series is one line of Curves.
type Series struct {
	Name  string
	X     []float64
	Y     []float64 // NaN and infinite values are left out
	Color int       // a place in the palette, from 0 on; the same in all charts that show the same thing
	Bold  bool      // a thicker line than the others
}

// Curves is a chart of lines, with a mark at each value.
type Curves struct {
	Title  string
	X, Y   Axis
	Series []Series
}

// palette has colors that are seen on a light and on a dark ground. The first one, distlock's, is that of the drawings in docs.
var palette = []color.Color{
	color.RGBA{0x12, 0x97, 0x6f, 255}, color.RGBA{0xd1, 0x60, 0x1f, 255}, color.RGBA{0x3d, 0x87, 0xd6, 255}, color.RGBA{0xa5, 0x69, 0xbd, 255},
	color.RGBA{0x8b, 0x94, 0x9e, 255}, color.RGBA{0xb8, 0x86, 0x0b, 255}, color.RGBA{0xa1, 0x88, 0x7f, 255}, color.RGBA{0x17, 0xa2, 0xb8, 255},
}

// Text and lines have these colors while they are drawn. Then restyled replaces them by the reader's.
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

// Sizes in points.
const (
	width, height = 600, 300
	textSize      = 10
	titleSize     = 12
	margin        = 6
	otherFonts    = 1.2 // a reader without the font that was measured may have one that is wider
)

// SVG returns the chart as a file.
func (c Curves) SVG() ([]byte, error) {
	p, legend := newPlot(c.Title), plot.NewLegend()
	for i, s := range c.Series {
		points := c.points(s)
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, marks.Color = palette[s.Color%len(palette)], palette[s.Color%len(palette)]
		line.Width, marks.Radius = 1.2, 2.6
		if s.Bold {
			line.Width, marks.Radius = 2.4, 3.4
		}
		marks.Shape = plotutil.Shape(i)
		p.Add(line, marks)
		legend.Add(s.Name, line, marks)
	}
	c.axes(p)
	return render(p, legend)
}

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
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = rule, rule
	grid.Vertical.Width, grid.Horizontal.Width = .5, .5
	p.Add(grid)
	return p
}

// restyleText leaves the alignment as it is.
func restyleText(s *text.Style, size font.Length) {
	s.Color = ink
	s.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// points returns the values that the axes can show.
func (c Curves) points(s Series) (xy plotter.XYs) {
	for i, y := range s.Y {
		x := s.X[i]
		if shown(y, c.Y.Log) && shown(x, c.X.Log) {
			xy = append(xy, plotter.XY{X: x, Y: y})
		}
	}
	return xy
}

func shown(v float64, log bool) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) && (!log || v > 0) }

// axes labels a logarithmic X axis at the values that were measured, and lets each Y axis start where a reader expects
// it: at zero, or at a power of ten.
func (c Curves) axes(p *plot.Plot) {
	c.X.apply(&p.X)
	c.Y.apply(&p.Y)
	if c.X.Log {
		var values []float64
		for _, s := range c.Series {
			values = append(values, s.X...)
		}
		slices.Sort(values)
		var at plot.ConstantTicks
		for _, v := range slices.Compact(values) {
			at = append(at, plot.Tick{Value: v, Label: Number(v)})
		}
		p.X.Tick.Marker = at
	}
	p.X.Max = max(p.X.Max, p.X.Min+1)
	switch {
	case !c.Y.Log:
		p.Y.Min, p.Y.Max = 0, max(p.Y.Max, 1)
	case p.Y.Min <= p.Y.Max:
		p.Y.Min, p.Y.Max = math.Pow(10, math.Floor(math.Log10(p.Y.Min))), math.Pow(10, math.Ceil(math.Log10(p.Y.Max)))
	}
}

func (a Axis) apply(to *plot.Axis) {
	to.Label.Text = a.Label
	ticker := plot.Ticker(plot.DefaultTicks{})
	if a.Log {
		to.Scale, ticker = plot.LogScale{}, plot.LogTicks{}
	}
	to.Tick.Marker = plot.TickerFunc(func(min, max float64) (labelled []plot.Tick) {
		for _, tick := range ticker.Ticks(min, max) {
			if tick.Label != "" {
				labelled = append(labelled, plot.Tick{Value: tick.Value, Label: Number(tick.Value)})
			}
		}
		return labelled
	})
}

// render draws the plot, with the legend at its right side, and returns the SVG.
func render(p *plot.Plot, legend plot.Legend) ([]byte, error) {
	canvas := vgsvg.New(width, height)
	all := draw.Crop(draw.New(canvas), margin, -margin, margin, -margin)
	restyleText(&legend.TextStyle, textSize)
	legend.ThumbnailWidth = 16
	legend.YOffs, legend.Padding = -titleSize-14, 4 // below the title's line
	legend.Top, legend.Left = true, true
	beside := vg.Length(0)
	if size := otherFonts * legend.Rectangle(all).Size().X; size > 0 {
		beside = size + 3*margin
		legend.Draw(draw.Crop(all, width-2*margin-size-margin, 0, 0, 0))
	}
	p.Draw(draw.Crop(all, 0, -beside, 0, 0))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, err
	}
	head, rest, _ := strings.Cut(restyled.Replace(out.String()), "<svg")
	attributes, body, _ := strings.Cut(rest, ">\n")
	return []byte(head + "<svg" + attributes + ">\n" + modes + body), nil
}

// Number writes a value with three digits at most, and thousands as k and M.
func Number(v float64) string {
	unit := ""
	switch {
	case math.Abs(v) >= 999_500:
		v, unit = v/1e6, " M"
	case math.Abs(v) >= 9_995:
		v, unit = v/1e3, " k"
	}
	s := strconv.FormatFloat(v, 'g', 3, 64)
	if strings.Contains(s, "e") {
		s = fmt.Sprintf("%.0f", v)
	}
	return s + unit
}
