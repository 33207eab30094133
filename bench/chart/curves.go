package chart

import (
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg/draw"
)

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
