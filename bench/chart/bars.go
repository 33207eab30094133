package chart

import (
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

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
func (d bars) Plot(c draw.Canvas, p *plot.Plot) {
	trX, trY := p.Transforms(&c)
	s := d.b.Series[d.series]
	label := text.Style{XAlign: draw.XLeft, YAlign: draw.YCenter, Handler: plot.DefaultTextHandler}
	restyleText(&label, textSize-2)
	for g := range d.b.Groups {
		// The first group and its first bar are at the top.
		middle := trY(float64(len(d.b.Groups)-1-g)) + barHeight*(vg.Length(len(d.b.Series)-1)/2-vg.Length(d.series))
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
