package bench

import (
	"math"
	"testing"
)

// Benchmark runs every scenario with every contender. One iteration is one measurement of fixed
// duration (-for). The figures are medians over the iterations; ns/op would have no meaning. For
// comparisons use TestReport, whose rounds alternate the contenders. Big scenarios run only there.
func Benchmark(b *testing.B) {
	for _, s := range scenarios {
		if s.big {
			continue
		}
		b.Run(s.name, func(b *testing.B) {
			for _, c := range s.contenders {
				b.Run(c.name, func(b *testing.B) { benchmark(b, s, c) })
			}
		})
	}
}

func benchmark(b *testing.B, s scenario, c contender) {
	r := newRig(b, s.at)
	var rounds []figures
	for b.Loop() {
		f, err := s.measure(r, c)
		if err != nil && !c.ours {
			b.Skip(err)
		}
		if err != nil {
			b.Fatal(err)
		}
		rounds = append(rounds, f)
	}
	b.ReportMetric(0, "ns/op")
	for _, f := range over(rounds) {
		if !math.IsInf(f.value, 0) && !math.IsNaN(f.value) {
			b.ReportMetric(f.value, metricUnit(f.name))
		}
	}
}
