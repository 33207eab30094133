// Command scale writes docs/scale.md and its charts, from the simulations of package sim. Run it in the
// folder proof:
//
//	go run ./sim/scale
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/distlock/distlock/bench/chart"
	"github.com/distlock/distlock/bench/measured"
	"github.com/distlock/distlock/proof/sim"
)

func main() {
	files, err := document()
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join("..", "docs", name), text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

//go:embed scale.md.tmpl
var text string

// document returns the files, by their names in docs.
func document() (map[string][]byte, error) {
	d := &doc{Record: measured.Latest(), files: map[string][]byte{}}
	t, err := template.New("").Funcs(template.FuncMap{
		"predictions": d.predictions, "sizes": d.sizes, "shards": d.shards, "outage": d.outage, "hot": d.hot, "number": number,
		"mul":  func(a, b float64) float64 { return a * b },
		"room": func() float64 { return sim.Second / d.turn() },
	}).Parse(text)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, d); err != nil {
		return nil, err
	}
	d.files["scale.md"] = out.Bytes()
	return d.files, nil
}

type doc struct {
	measured.Record
	files map[string][]byte
}

// fleet is the largest one in the document.
var fleet = sim.Fleet{
	Processes: 1e6, Leases: 1e7, Pairs: 1e5, Shards: 8, TTL: 30 * sim.Second, Margin: sim.Second, Network: 100,
}

// predictions says how far the predictions are off what was measured of whole systems.
func (d *doc) predictions() string {
	leases, fight, turns := sim.Predict(d.Costs, d.Points.Leases.TakenPerS)
	p, most := d.Points, 0.
	for _, x := range [][2]float64{
		{leases.Commands, p.Leases.Commands}, {leases.ServerCPU, p.Leases.ServerCPU}, {leases.ClientCPU, p.Leases.ClientCPU},
		{fight.Rate, p.Processes.Rate}, {fight.P999MS, p.Processes.P999MS},
		{turns.Rate, p.Waiters.Rate}, {turns.Commands, p.Waiters.Commands}, {turns.LongestMS, p.Waiters.LongestMS},
	} {
		most = max(most, math.Abs(x[0]/x[1]-1))
	}
	return fmt.Sprintf("Predicted from them, eight figures of whole systems on the same machine are off by %.0f %% at most; a test requires 15 %%.", 100*most)
}

// sizes says what one Redis does for fleets of some sizes.
func (d *doc) sizes() string {
	var rows [][]any
	for _, x := range []struct {
		processes, leases int
		pairs             float64
		run               string
	}{
		{100, 1e4, 1e3, "one Redis"},
		{1000, 1e5, 1e4, "one Redis"},
		{5000, 5e5, 2e4, "one Redis; two leave room for bursts"},
		{10_000, 1e6, 3e4, "4 masters, and a greater `maxclients`"},
		{100_000, 1e7, 1e5, "16 masters, a greater `maxclients`, a TTL of 60 s"},
		{1_000_000, 1e7, 1e5, "32 masters, processes in front of them that share connections, a TTL of 120 s"},
	} {
		f := fleet
		f.Processes, f.Leases, f.Pairs, f.Shards = x.processes, x.leases, x.pairs, 1
		l := f.Steady(d.Costs, min(2, 4e4/f.Pairs)*sim.Second)
		rows = append(rows, []any{float64(x.processes), float64(x.leases), x.pairs, percent(l.Used), lockTime(l, l.P99), x.run})
	}
	return table("processes | leases | pairs/s | one Redis would be busy | Lock p99, ms | run", rows...)
}

func (d *doc) shards() (string, error) {
	var rows [][]any
	lines := []chart.Series{{Name: "own connections", Bold: true}, {Name: "100 gateways", Color: 2}}
	for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
		f := fleet
		f.Shards = n
		time := min(.2*float64(n), 3) * sim.Second // about as many events for each
		own := f.Steady(d.Costs, time)
		f.Gateways = 100
		shared := f.Steady(d.Costs, time)
		rows = append(rows, []any{
			n, own.Renewals, percent(own.Used), percent(shared.Used),
			lockTime(shared, shared.Median), lockTime(shared, shared.P99), lockTime(shared, shared.P999),
		})
		for i, l := range []sim.Load{own, shared} {
			lines[i].X, lines[i].Y = append(lines[i].X, float64(n)), append(lines[i].Y, 100*l.Used)
		}
	}
	err := d.chart("scale-shards.svg", chart.Curves{
		Title: "A million processes, ten million leases: the work of each server",
		X:     chart.Axis{Label: "servers", Log: true}, Y: chart.Axis{Label: "% of its time", Log: true}, Series: lines,
	})
	return table("servers | renewals/s | own connections: busy | 100 gateways | Lock p50, ms | p99 | p99.9", rows...), err
}

// away has one of eight servers fail.
func (d *doc) away(processes int, ttl, down float64, change func(*sim.Outage)) sim.Recovery {
	f := fleet
	f.Processes, f.TTL = processes, ttl*sim.Second
	o := sim.Outage{Fleet: f, Down: down * sim.Second, Scale: 250}
	if change != nil {
		change(&o)
	}
	return o.Run(d.Costs)
}

func lost(r sim.Recovery) string { return fmt.Sprintf("%.0f %%", 100*r.Lost) }

func after(r sim.Recovery) string {
	if r.Lost > .995 {
		return "–"
	}
	return number(r.Done / sim.Second)
}

func (d *doc) outage() (string, error) {
	var rows [][]any
	var lines []chart.Series
	ttls := []float64{30, 60, 120}
	for _, n := range []int{1000, 10_000, 100_000, 1_000_000} {
		row := []any{float64(n)}
		for _, ttl := range ttls {
			r := d.away(n, ttl, 20, nil)
			row = append(row, lost(r), after(r))
		}
		rows = append(rows, row)
	}
	for _, ttl := range ttls {
		s := chart.Series{Name: fmt.Sprintf("TTL %.0f s", ttl), Color: len(lines), Bold: len(lines) == 0}
		for down := 5.; down <= 75; down += 10 {
			s.X = append(s.X, down)
			s.Y = append(s.Y, 100*d.away(1000, ttl, down, nil).Lost)
		}
		lines = append(lines, s)
	}
	err := d.chart("scale-outage.svg", chart.Curves{
		Title: "One of eight servers is away: leases that a thousand processes lose",
		X:     chart.Axis{Label: "length of the outage, s"}, Y: chart.Axis{Label: "%"}, Series: lines,
	})
	return table("processes | TTL 30 s: lost | renewed after, s | TTL 60 s: lost | after, s | TTL 120 s: lost | after, s", rows...), err
}

// turn is how long a name is taken that is held for 1 ms.
func (d *doc) turn() float64 { return d.Costs.Wake + sim.Millisecond }

// hot draws a chart and returns no text.
func (d *doc) hot() (string, error) {
	turn := d.turn()
	var lines []chart.Series
	for _, s := range []float64{1.01, 1.1} {
		hottest := sim.Hottest(10_000_000, s)
		limit := sim.Second / turn / hottest
		line := chart.Series{Name: fmt.Sprintf("s = %g", s), Color: 2 * len(lines), Bold: len(lines) == 0}
		for _, load := range []float64{.1, .25, .5, .75, .9, .95} {
			_, p99 := sim.Wait(load*limit*hottest, turn, 200*sim.Second)
			line.X, line.Y = append(line.X, load*limit), append(line.Y, p99/sim.Millisecond)
		}
		lines = append(lines, line)
	}
	return "", d.chart("scale-hot.svg", chart.Curves{
		Title: "Wait for the most popular of ten million names, held for 1 ms",
		X:     chart.Axis{Label: "locks per second, of all names"}, Y: chart.Axis{Label: "p99, ms", Log: true}, Series: lines,
	})
}

func (d *doc) chart(name string, c chart.Curves) (err error) {
	d.files[name], err = c.SVG()
	return err
}

// table writes rows of cells in Markdown.
func table(head string, rows ...[]any) string {
	var b strings.Builder
	b.WriteString("| " + head + " |\n" + strings.Repeat("|---", strings.Count(head, "|")+1) + "|\n")
	for _, row := range rows {
		for _, cell := range row {
			if v, ok := cell.(float64); ok {
				cell = number(v)
			}
			fmt.Fprintf(&b, "| %v ", cell)
		}
		b.WriteString("|\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// number writes two digits.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < .01:
		return "< 0.01"
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-1)
	v = math.Round(v/unit) * unit
	name := ""
	switch {
	case v >= 999_999:
		v, unit, name = v/1e6, unit/1e6, " M"
	case v >= 9_999:
		v, unit, name = v/1e3, unit/1e3, " k"
	}
	s := fmt.Sprintf("%.*f", max(0, -int(math.Round(math.Log10(unit)))), v)
	if strings.Contains(s, ".") {
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	return s + name
}

// percent writes the work of a server, or another share.
func percent(v float64) string {
	if v > 1 {
		return fmt.Sprintf("**%.0f %%**", 100*v)
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

// lockTime writes a time of Lock, which grows without end on a server with too much work.
func lockTime(l sim.Load, v float64) string {
	if l.Used >= .98 {
		return "–"
	}
	return number(v / sim.Millisecond)
}
