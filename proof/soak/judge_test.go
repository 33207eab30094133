//go:build linux

package soak

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

const (
	// tolerance is the part of its own level by which a gauge may grow in the second half of a run.
	tolerance = 0.10

	// windows is the number of parts of that half. The least value of each part counts: load, and a busy machine,
	// lift a gauge, and a leak lifts its floor. Each part has a rest in it.
	windows = 8
)

// verdict says how a gauge has moved in the second half of a run.
type verdict struct {
	half, last float64 // the floor when that half began, and when it ended
	growth     float64 // in that half, by the Theil-Sen estimate of the slope
	allowed    float64
}

func (v verdict) flat() bool { return v.growth <= v.allowed }

// judge judges the values of a gauge, of which slack more are nothing whatever the level.
func judge(values []float64, slack float64) verdict {
	floors := minima(values[len(values)/2:], windows)
	if len(floors) == 0 {
		return verdict{}
	}
	return verdict{
		half: floors[0], last: floors[len(floors)-1],
		growth:  theilSen(floors) * float64(len(floors)),
		allowed: max(slack, tolerance*math.Abs(median(floors))),
	}
}

// minima returns the least value of each of n parts; of each value, if there are fewer.
func minima(values []float64, n int) (least []float64) {
	n = min(n, len(values))
	for i := range n {
		least = append(least, slices.Min(values[i*len(values)/n:(i+1)*len(values)/n]))
	}
	return least
}

// theilSen returns the median of the slopes between all pairs, per step. A few wild values do not move it.
func theilSen(values []float64) float64 {
	var slopes []float64
	for i := range values {
		for j := range i {
			slopes = append(slopes, (values[i]-values[j])/float64(i-j))
		}
	}
	return median(slopes)
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[len(sorted)/2] + sorted[(len(sorted)-1)/2]) / 2
}

func TestJudge(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := func(most float64) float64 { return rnd.Float64() * most }
	for name, c := range map[string]struct {
		value func(i int) float64 // of 600 samples
		leaks bool
	}{
		"constant":           {value: func(int) float64 { return 300 }},
		"nothing":            {value: func(int) float64 { return 0 }},
		"noise":              {value: func(int) float64 { return 200 + noise(300) }},
		"warms up":           {value: func(i int) float64 { return 500 - 500*math.Exp(-float64(i)/60) }},
		"falls":              {value: func(i int) float64 { return 900 - float64(i) }},
		"falls below zero":   {value: func(i int) float64 { return -float64(i) }},
		"saw":                {value: func(i int) float64 { return 300 + 2*float64(i%50) }},
		"stalls at the end":  {value: func(i int) float64 { return 300 + 1000*float64(i/590) }},
		"stalls":             {value: func(i int) float64 { return 300 + 5000*float64((i/10)%2) }},
		"leaks":              {value: func(i int) float64 { return 300 + 0.2*float64(i) }, leaks: true},
		"leaks from nothing": {value: func(i int) float64 { return 0.2 * float64(i) }, leaks: true},
		"leaks below zero":   {value: func(i int) float64 { return -300 + 0.3*float64(i) }, leaks: true},
		"leaks in noise":     {value: func(i int) float64 { return 300 + 0.3*float64(i) + noise(300) }, leaks: true},
		"leaks in a saw":     {value: func(i int) float64 { return 300 + 0.3*float64(i) + 2*float64(i%50) }, leaks: true},
		"leaks in steps":     {value: func(i int) float64 { return 300 + 20*float64(i/100) }, leaks: true},
	} {
		values := make([]float64, 600)
		for i := range values {
			values[i] = c.value(i)
		}
		if v := judge(values, 20); v.flat() == c.leaks {
			t.Errorf("%s: %+v, flat %v; want %v", name, v, v.flat(), !c.leaks)
		}
	}
	for n := range 5 {
		if v := judge(make([]float64, n), 0); !v.flat() {
			t.Errorf("%d values: %+v", n, v)
		}
	}
}
