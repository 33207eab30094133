package report

import (
	"slices"
	"strings"

	"github.com/distlock/distlock/bench/chart"
)

// drawing is a chart of one figure of a family: curves over its sizes.
type drawing struct {
	file, title string
	family      string
	figure      string
	label       string
	x           string // the label of the sizes
	logY        bool
	contenders  []string // all, if there are none
}

// colors are the places in the palette of contenders that occur in several charts.
var colors = map[string]int{
	"distlock": 0, "redsync": 1, "rueidislock": 2, "redislock 100 ms": 3, "raw rueidis": 4, "raw go-redis": 6,
	"distlock on Redis": 0, "distlock through a server": 5,
	"raw HTTP, GET /healthz twice": 4, "none held": 4,
}

// draw returns nothing if the family was not measured.
func (r *Results) draw(d drawing) ([]byte, error) {
	all := r.family(d.family)
	if len(all) == 0 {
		return nil, nil
	}
	var series []chart.Series
	for i, row := range all[len(all)-1].Rows {
		if len(d.contenders) > 0 && !slices.Contains(d.contenders, row.Contender) {
			continue
		}
		color, ok := colors[row.Contender]
		if !ok {
			color = i
		}
		line := chart.Series{Name: row.Contender, Color: color, Bold: strings.HasPrefix(row.Contender, "distlock")}
		for _, s := range all {
			line.X = append(line.X, float64(s.size()))
			line.Y = append(line.Y, s.figure(row.Contender, d.figure))
		}
		series = append(series, line)
	}
	x, y := chart.Axis{Label: d.x, Log: true}, chart.Axis{Label: d.label, Log: d.logY}
	return chart.Curves{Title: d.title, X: x, Y: y, Series: series}.SVG()
}
