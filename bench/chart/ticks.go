package chart

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
)

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
