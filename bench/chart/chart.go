// Package chart draws the few kinds of charts that the documents use, as SVG without embedded fonts.
//
// The files follow the reader's light or dark mode, and have no background of their own.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
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

// Bars is a chart of horizontal bars: in each group one bar of each series, with its value.
type Bars struct {
	Title  string
	Label  string   // of the values
	Groups []string // Series.Y has a value for each
	Series []Series
}

// Points of height that one bar takes, and that are between two groups.
const (
	barHeight = 13
	between   = 10
)

// SVG returns the chart as a file.
func (b Bars) SVG() ([]byte, error) {
	p := newPlot(b.Title)
	grid := plotter.NewGrid()
	grid.Horizontal.Width, grid.Vertical.Width = 0, .5
	grid.Vertical.Color = rule
	p.Add(grid)
	group := vg.Length(len(b.Series))*barHeight + between
	for i, s := range b.Series {
		if err := b.add(p, i, s); err != nil {
			return nil, err
		}
	}
	p.X.Label.Text = b.Label
	p.X.Tick.Marker = ticks{}
	p.X.Min = 0
	p.X.Max *= 1.08 // room for the value of the longest bar
	p.Y.Min, p.Y.Max = -.5, float64(len(b.Groups))-.5
	b.names(p)
	return render(p, b.legend(), vg.Length(len(b.Groups))*group+70)
}

// bars places bar i of a group by data, so that it stays in place whatever the height of the plot is.
type bars struct {
	b      Bars
	series int
}

func (b Bars) add(p *plot.Plot, i int, s Series) error {
	for _, v := range s.Y {
		if shown(v, false) {
			p.X.Max = max(p.X.Max, v)
		}
	}
	p.Add(bars{b, i})
	return nil
}

// Plot draws one series. It implements plot.Plotter.
func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	s := b.b.Series[b.series]
	label := text.Style{XAlign: draw.XLeft, YAlign: draw.YCenter, Handler: plot.DefaultTextHandler}
	restyleText(&label, textSize-2)
	for g := range b.b.Groups {
		// The first group and its first bar are at the top.
		middle := trY(float64(len(b.b.Groups)-1-g)) + barHeight*(vg.Length(len(b.b.Series)-1)/2-vg.Length(b.series))
		if g >= len(s.Y) || !shown(s.Y[g], false) {
			c.FillText(label, vg.Point{X: trX(0) + 3, Y: middle}, "–")
			continue
		}
		end := trX(s.Y[g])
		c.FillPolygon(paint(s.Color), rectangle(trX(0), end, middle-barHeight*.42, middle+barHeight*.42))
		c.FillText(label, vg.Point{X: end + 3, Y: middle}, Number(s.Y[g]))
	}
}

func rectangle(x0, x1, y0, y1 vg.Length) []vg.Point {
	return []vg.Point{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}}
}

// names labels the groups.
func (b Bars) names(p *plot.Plot) {
	var at []plot.Tick
	for g, name := range b.Groups {
		at = append(at, plot.Tick{Value: float64(len(b.Groups) - 1 - g), Label: name})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(at)
}

func (b Bars) legend() plot.Legend {
	legend := plot.NewLegend()
	if len(b.Series) == 1 {
		return legend
	}
	for _, s := range b.Series {
		legend.Add(s.Name, swatch(s.Color))
	}
	return legend
}

// swatch is a color in the legend.
type swatch int

// Thumbnail implements plot.Thumbnailer.
func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(paint(int(s)), rectangle(c.Min.X+4, c.Max.X, c.Min.Y+1, c.Max.Y-1))
}

// Curves is a chart of lines, with a mark at each value.
type Curves struct {
	Title  string
	X, Y   Axis
	Series []Series
}

// SVG returns the chart as a file.
func (c Curves) SVG() ([]byte, error) {
	p := newPlot(c.Title)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = rule, rule
	grid.Vertical.Width, grid.Horizontal.Width = .5, .5
	p.Add(grid)
	legend := plot.NewLegend()
	for i, s := range c.Series {
		points := c.points(s)
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, marks.Color = paint(s.Color), paint(s.Color)
		line.Width, marks.Radius = 1.2, 2.6
		if s.Bold {
			line.Width, marks.Radius = 2.4, 3.4
		}
		marks.Shape = shapes[i%len(shapes)]
		p.Add(line, marks)
		legend.Add(s.Name, line, marks)
	}
	c.X.apply(&p.X)
	c.Y.apply(&p.Y)
	c.ticks(p)
	return render(p, legend, 300)
}

// shapes tell curves apart without colors.
var shapes = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.SquareGlyph{}, draw.PyramidGlyph{}, draw.BoxGlyph{}, draw.RingGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{},
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

func (a Axis) apply(to *plot.Axis) {
	to.Label.Text = a.Label
	if a.Log {
		to.Scale = plot.LogScale{}
	}
	to.Tick.Marker = ticks{log: a.Log}
}

// ticks labels a logarithmic X axis at the values that were measured, and lets each Y axis start where a
// reader expects it: at zero, or at a power of ten.
func (c Curves) ticks(p *plot.Plot) {
	if c.X.Log {
		values := map[float64]bool{}
		for _, s := range c.Series {
			for _, x := range s.X {
				values[x] = x > 0
			}
		}
		if len(values) <= 8 {
			p.X.Tick.Marker = ticks{log: true, at: values}
		}
	}
	if c.Y.Log {
		p.Y.Min, p.Y.Max = below(p.Y.Min), above(p.Y.Max)
	} else {
		p.Y.Min = 0
	}
	if p.X.Min == p.X.Max {
		p.X.Max++
	}
	if p.Y.Min >= p.Y.Max {
		p.Y.Max = p.Y.Min*10 + 1
	}
}

// ticks writes numbers short, and a logarithmic axis with 1, 10, 100 and so on.
type ticks struct {
	log bool
	at  map[float64]bool // exactly these values
}

// Ticks returns the marks between two values.
func (t ticks) Ticks(min, max float64) []plot.Tick {
	var out []plot.Tick
	switch {
	case t.at != nil:
		for _, v := range slices.Sorted(maps.Keys(t.at)) {
			out = append(out, plot.Tick{Value: v, Label: Number(v)})
		}
	case !t.log:
		for _, m := range (plot.DefaultTicks{}).Ticks(min, max) {
			if m.Label != "" {
				out = append(out, plot.Tick{Value: m.Value, Label: Number(m.Value)})
			}
		}
	default:
		out = logTicks(min, max)
	}
	return out
}

// logTicks marks powers of ten, and 2 and 5 between them if there are few.
func logTicks(min, max float64) (out []plot.Tick) {
	between := []float64{1}
	if max/min < 200 {
		between = []float64{1, 2, 5}
	}
	for decade := math.Floor(math.Log10(min)); decade <= math.Ceil(math.Log10(max)); decade++ {
		for _, n := range between {
			v := n * math.Pow(10, decade)
			if v >= min*.999 && v <= max*1.001 {
				out = append(out, plot.Tick{Value: v, Label: Number(v)})
			}
		}
	}
	return out
}

// below and above round to 1, 2 or 5 times a power of ten.
func below(v float64) float64 {
	return round(v, func(step, v float64) bool { return step <= v*1.0001 }, 5, 2, 1)
}
func above(v float64) float64 {
	return round(v, func(step, v float64) bool { return step >= v*.9999 }, 1, 2, 5, 10)
}

func round(v float64, ok func(step, v float64) bool, steps ...float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range steps {
		if ok(n*decade, v) {
			return n * decade
		}
	}
	return v
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
