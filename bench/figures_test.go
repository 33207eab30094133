package bench

import (
	"slices"
	"time"
)

// figure is one number of a measurement. Its name, as printed, includes the unit.
type figure struct {
	name  string
	value float64
}

type figures []figure

func (f figures) get(name string) (float64, bool) {
	i := slices.IndexFunc(f, func(x figure) bool { return x.name == name })
	if i < 0 {
		return 0, false
	}
	return f[i].value, true
}

// longest is the only figure of which the maximum is reported, since a median would hide it.
const longest = "longest-ms"

// over combines a contender's rounds into one row: the maximum of longest, and medians of the rest.
func over(rounds []figures) figures {
	var out figures
	for _, f := range rounds[0] {
		var values []float64
		for _, r := range rounds {
			if v, ok := r.get(f.name); ok {
				values = append(values, v)
			}
		}
		if f.name == longest {
			out = append(out, figure{f.name, slices.Max(values)})
			continue
		}
		out = append(out, figure{f.name, median(values)})
	}
	return out
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// spread returns the greatest count divided by the smallest; +Inf if the smallest is 0.
func spread(counts []int64) float64 {
	return float64(slices.Max(counts)) / float64(slices.Min(counts))
}
