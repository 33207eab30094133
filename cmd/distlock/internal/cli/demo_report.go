package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"text/tabwriter"
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
	Stock    int `json:"stock"`
	Sold     int `json:"sold"`
	Oversold int `json:"oversold"`
}

// lockedTally is the run with the lock.
type lockedTally struct {
	tally
	FencesIncreasing bool `json:"fences_increasing"`
}

func (d *trial) tally() tally { return tally{d.stock, d.sold(), d.oversold()} }

func (a *app) printTallies(without, with *trial, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.out).Encode(struct {
			Without tally       `json:"without_lock"`
			With    lockedTally `json:"with_lock"`
		}{without.tally(), lockedTally{with.tally(), with.fencesIncrease()}})
	}
	a.printf("A shop with %d items; %d processes with %d buyers each.\n\n", with.stock, with.processes, with.workers)
	t := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "\twithout a lock\twith a lock")
	fmt.Fprintf(t, "sold\t%d\t%d\n", without.sold(), with.sold())
	fmt.Fprintf(t, "oversold\t%d\t%d\n", without.oversold(), with.oversold())
	fmt.Fprintf(t, "time\t%s\t%s\n", short(without.took), short(with.took))
	fmt.Fprintf(t, "lock wait, p50\t-\t%s\n", fine(with.wait(50)))
	fmt.Fprintf(t, "lock wait, p99\t-\t%s\n", fine(with.wait(99)))
	fmt.Fprintf(t, "fences increase\t-\t%s\n", yes(with.fencesIncrease()))
	return t.Flush()
}

// fine rounds a short duration.
func fine(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

// The dimensions of the drawing, in pixels.
const (
	svgWidth   = 1000
	svgLeft    = 110 // where the time axis begins
	svgRight   = 30
	svgTop     = 90
	svgRow     = 34
	svgBar     = 22
	svgLegend  = 24 // height of its lines
	svgColumns = 5  // of the legend
	svgAxis    = 40
	svgPlot    = svgWidth - svgLeft - svgRight
	svgMinimum = 0.7 // width of a bar
)

// svgColours are distinct for neighbouring rows, also to the colour-blind.
var svgColours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#b3a100"}

// drawing is an SVG under construction.
type drawing struct {
	bytes.Buffer
	d      *trial
	from   int64 // first moment, in nanoseconds
	span   int64
	bottom int // of the rows
}

// drawHolds draws the holds over time: a row for each process, a bar for each hold.
func drawHolds(d *trial) []byte {
	s := &drawing{d: d, span: 1, bottom: svgTop + d.processes*svgRow}
	s.measure()
	height := s.bottom + svgAxis + (d.processes+svgColumns-1)/svgColumns*svgLegend
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="Helvetica, Arial, sans-serif">`+"\n", svgWidth, height)
	fmt.Fprintf(s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", svgWidth, height)
	s.text(svgLeft, 32, 18, "start", "#222222", "Who held the lock shop:item")
	s.text(svgLeft, 54, 13, "start", "#666666", s.subtitle())
	s.legend()
	s.axis()
	s.rows()
	s.WriteString("</svg>\n")
	return s.Bytes()
}

func (s *drawing) measure() {
	for i, v := range s.d.visits {
		if i == 0 || v.Got < s.from {
			s.from = v.Got
		}
	}
	for _, v := range s.d.visits {
		s.span = max(s.span, v.Left-s.from)
	}
}

func (s *drawing) subtitle() string {
	return fmt.Sprintf("%d processes with %d buyers each, %d items, %d sold; %d holds in %s, one at a time", s.d.processes,
		s.d.workers, s.d.stock, s.d.sold(), len(s.d.visits), short(time.Duration(s.span)))
}

// x returns the position of a moment.
func (s *drawing) x(ns int64) float64 { return svgLeft + float64(ns-s.from)/float64(s.span)*svgPlot }

func (s *drawing) text(x float64, y, size int, anchor, colour, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%d" font-size="%d" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, size, anchor, colour, text)
}

// rows draws a row for each process, with its holds.
func (s *drawing) rows() {
	for p := range s.d.processes {
		y := svgTop + p*svgRow
		s.text(svgLeft-12, y+svgRow/2+4, 13, "end", "#222222", fmt.Sprintf("process %d", p+1))
		fmt.Fprintf(s, `<line x1="%d" y1="%d" x2="%d" y2="%[2]d" stroke="#eeeeee"/>`+"\n", svgLeft, y+svgRow, svgWidth-svgRight)
	}
	for _, v := range s.d.visits {
		y := svgTop + v.Process*svgRow + (svgRow-svgBar)/2
		width := max(s.x(v.Left)-s.x(v.Got), svgMinimum)
		fmt.Fprintf(s, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"/>`+"\n", s.x(v.Got), y, width, svgBar, colour(v.Process))
	}
}

func colour(process int) string { return svgColours[process%len(svgColours)] }

// axis draws the time axis.
func (s *drawing) axis() {
	step := tick(time.Duration(s.span))
	for at := time.Duration(0); at <= time.Duration(s.span); at += step {
		x := s.x(s.from + int64(at))
		fmt.Fprintf(s, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#dddddd"/>`+"\n", x, svgTop, x, s.bottom)
		s.text(x, s.bottom+18, 12, "middle", "#666666", at.String())
	}
	fmt.Fprintf(s, `<line x1="%d" y1="%d" x2="%d" y2="%[2]d" stroke="#888888"/>`+"\n", svgLeft, s.bottom, svgWidth-svgRight)
}

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

// legend draws the number of holds for each colour.
func (s *drawing) legend() {
	holds := make([]int, s.d.processes)
	for _, v := range s.d.visits {
		holds[v.Process]++
	}
	for p, n := range holds {
		x := svgLeft + float64(p%svgColumns*svgPlot/svgColumns)
		y := s.bottom + svgAxis + p/svgColumns*svgLegend
		fmt.Fprintf(s, `<rect x="%.1f" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, y, colour(p))
		s.text(x+18, y+11, 12, "start", "#222222", fmt.Sprintf("process %d: %d holds", p+1, n))
	}
}
