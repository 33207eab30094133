package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/distlock/distlock/bench/sim"
)

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
