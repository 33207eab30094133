package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"text/tabwriter"
	"text/template"
	"time"
)

// trial is the result of one run of the demo.
type trial struct {
	stock, processes, workers int

	took   time.Duration
	fences []uint64 // of the sales, in their order
	visits []visit  // under the lock
}

func (d *trial) sold() int { return len(d.fences) }

func (d *trial) oversold() int { return max(0, d.sold()-d.stock) }

// fencesIncrease reports whether each sale has a greater fence than the one before.
func (d *trial) fencesIncrease() bool {
	last := uint64(0)
	for _, f := range d.fences {
		if f <= last {
			return false
		}
		last = f
	}
	return true
}

// wait returns a percentile of the time that buyers waited for the lock.
func (d *trial) wait(percent int) time.Duration {
	if len(d.visits) == 0 {
		return 0
	}
	var waits []int64
	for _, v := range d.visits {
		waits = append(waits, v.Got-v.Asked)
	}
	slices.Sort(waits)
	return time.Duration(waits[(len(waits)-1)*percent/100])
}

// tally is a run in the output of --json.
type tally struct {
	Stock            int   `json:"stock"`
	Sold             int   `json:"sold"`
	Oversold         int   `json:"oversold"`
	FencesIncreasing *bool `json:"fences_increasing,omitempty"` // nil without the lock
}

func (a *app) printTallies(without, with *trial, asJSON bool) error {
	increase := with.fencesIncrease()
	if asJSON {
		return json.NewEncoder(a.out).Encode(struct {
			Without tally `json:"without_lock"`
			With    tally `json:"with_lock"`
		}{
			tally{without.stock, without.sold(), without.oversold(), nil},
			tally{with.stock, with.sold(), with.oversold(), &increase},
		})
	}
	a.printf("A shop with %d items; %d processes with %d buyers each.\n\n", with.stock, with.processes, with.workers)
	t := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\twithout a lock\twith a lock")
	fmt.Fprintf(t, "sold\t%d\t%d\n", without.sold(), with.sold())
	fmt.Fprintf(t, "oversold\t%d\t%d\n", without.oversold(), with.oversold())
	fmt.Fprintf(t, "time\t%s\t%s\n", short(without.took), short(with.took))
	fmt.Fprintf(t, "lock wait, p50\t-\t%s\n", fine(with.wait(50)))
	fmt.Fprintf(t, "lock wait, p99\t-\t%s\n", fine(with.wait(99)))
	fmt.Fprintf(t, "fences increase\t-\t%s\n", map[bool]string{true: "yes", false: "NO"}[increase])
	return t.Flush()
}

// fine rounds a short duration.
func fine(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

// The layout of the chart, in pixels.
const (
	chartLeft   = 110 // where the time axis begins
	chartWidth  = 860 // of the time axis
	chartTop    = 90
	chartRow    = 34
	chartLegend = 40 // from the axis to the legend
)

// chartColours are distinct for neighbouring rows, also to the colour-blind.
var chartColours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#b3a100"}

// chart is the data of the template.
type chart struct {
	Height, Bottom            int // Bottom: of the rows
	Subtitle                  string
	Ticks, Rows, Bars, Legend []mark
}

// mark is a part of the chart.
type mark struct {
	X, Y, Width float64
	Colour      string
	Text        string
}

const chartTemplate = `<svg xmlns="http://www.w3.org/2000/svg" width="1000" height="{{.Height}}" viewBox="0 0 1000 {{.Height}}" font-family="Helvetica, Arial, sans-serif" fill="#222222">
<rect width="1000" height="{{.Height}}" fill="#ffffff"/>
<text x="110" y="32" font-size="18">Holders of the lock shop:item</text>
<text x="110" y="54" font-size="13" fill="#666666">{{.Subtitle}}</text>
{{range .Legend}}<rect x="{{.X}}" y="{{.Y}}" width="12" height="12" fill="{{.Colour}}"/>
<text x="{{.X}}" y="{{.Y}}" dx="18" dy="11" font-size="12">{{.Text}}</text>
{{end}}{{range .Ticks}}<line x1="{{.X}}" y1="90" x2="{{.X}}" y2="{{$.Bottom}}" stroke="#dddddd"/>
<text x="{{.X}}" y="{{$.Bottom}}" dy="18" font-size="12" text-anchor="middle" fill="#666666">{{.Text}}</text>
{{end}}<line x1="110" y1="{{.Bottom}}" x2="970" y2="{{.Bottom}}" stroke="#888888"/>
{{range .Rows}}<line x1="110" y1="{{.Y}}" x2="970" y2="{{.Y}}" stroke="#eeeeee"/>
<text x="98" y="{{.Y}}" dy="-13" font-size="13" text-anchor="end">{{.Text}}</text>
{{end}}{{range .Bars}}<rect x="{{.X}}" y="{{.Y}}" width="{{.Width}}" height="22" fill="{{.Colour}}"/>
{{end}}</svg>
`

// drawHolds draws the holds over time: a row for each process, a bar for each hold.
func drawHolds(d *trial) ([]byte, error) {
	from, span := int64(0), int64(1)
	for i, v := range d.visits {
		if i == 0 || v.Got < from {
			from = v.Got
		}
	}
	for _, v := range d.visits {
		span = max(span, v.Left-from)
	}
	x := func(ns int64) float64 { return chartLeft + math.Round(float64(ns)/float64(span)*chartWidth*100)/100 }
	c := chart{Bottom: chartTop + d.processes*chartRow}
	c.Height = c.Bottom + chartLegend + (d.processes+4)/5*24
	c.Subtitle = fmt.Sprintf("%d processes with %d buyers each, %d items, %d sold; %d holds in %s, one at a time",
		d.processes, d.workers, d.stock, d.sold(), len(d.visits), short(time.Duration(span)))
	for step, at := tick(time.Duration(span)), time.Duration(0); at <= time.Duration(span); at += step {
		c.Ticks = append(c.Ticks, mark{X: x(int64(at)), Text: at.String()})
	}
	holds := make([]int, d.processes)
	for _, v := range d.visits {
		holds[v.Process]++
		left, right := x(v.Got-from), x(v.Left-from)
		c.Bars = append(c.Bars, mark{X: left, Y: float64(chartTop + v.Process*chartRow + 6), Width: max(right-left, 0.7), Colour: colour(v.Process)})
	}
	for p, n := range holds {
		c.Rows = append(c.Rows, mark{Y: float64(chartTop + (p+1)*chartRow), Text: fmt.Sprintf("process %d", p+1)})
		c.Legend = append(c.Legend, mark{
			X: float64(chartLeft + p%5*chartWidth/5), Y: float64(c.Bottom + chartLegend + p/5*24),
			Colour: colour(p), Text: fmt.Sprintf("process %d: %d holds", p+1, n),
		})
	}
	t, err := template.New("chart").Parse(chartTemplate)
	if err != nil {
		return nil, err
	}
	var drawing bytes.Buffer
	err = t.Execute(&drawing, c)
	return drawing.Bytes(), err
}

func colour(process int) string { return chartColours[process%len(chartColours)] }

// tick returns a distance that makes five to twelve ticks.
func tick(span time.Duration) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if span/(n*unit) <= 12 {
				return n * unit
			}
		}
	}
}
