package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/distlock/distlock/bench/chart"
)

// Table returns the measurements of scenarios that differ only in a size, in Markdown.
func Table(all ...Scenario) string {
	if len(all) == 0 || len(all[len(all)-1].Rows) == 0 {
		return ""
	}
	var doc strings.Builder
	last := all[len(all)-1]
	title := strings.TrimSuffix(last.Title, ".")
	first := ""
	if len(all) > 1 {
		size := fmt.Sprint(last.size())
		title, first = strings.Replace(title, size, "N", 1), " N |"
	}
	fmt.Fprintf(&doc, "\n**%s.** %s; %d rounds, load average before %s.\n\n|%s |", title, last.Server, last.Rounds, all[0].Load, first)
	for _, f := range last.Rows[0].Figures {
		fmt.Fprintf(&doc, " %s |", strings.ReplaceAll(f.Name, "-", " "))
	}
	fmt.Fprintf(&doc, "\n|%s---|%s\n", strings.Repeat("---:|", min(len(first), 1)), strings.Repeat("---:|", len(last.Rows[0].Figures)))
	for _, s := range all {
		for _, row := range s.Rows {
			doc.WriteString("|")
			if first != "" {
				fmt.Fprintf(&doc, " %d |", s.size())
			}
			row.write(&doc)
		}
	}
	return doc.String()
}

func (row Row) write(doc *strings.Builder) {
	name := row.Contender
	if strings.HasPrefix(name, "distlock") {
		name = "**" + name + "**"
	}
	fmt.Fprintf(doc, " %s |", name)
	for _, f := range row.Figures {
		fmt.Fprintf(doc, " %s |", number(float64(f.Value)))
	}
	doc.WriteString("\n")
}

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	}
	return chart.Number(v)
}
