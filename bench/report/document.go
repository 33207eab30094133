package report

import (
	_ "embed"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/distlock/distlock/bench/chart"
)

// The places below the project's root.
const (
	ResultsFile  = "bench/results.json"
	documentFile = "docs/performance.md"
	chartFolder  = "docs/performance"
)

// elsewhere has figures that other commands make.
//
//go:embed elsewhere.md
var elsewhere string

// Files returns the document and its charts, by path from the project's root.
func (r *Results) Files() (map[string][]byte, error) {
	files := map[string][]byte{}
	var doc strings.Builder
	doc.WriteString(introduction)
	r.conditions(&doc)
	for _, s := range sections {
		if !slices.ContainsFunc(s.families, func(f string) bool { return len(r.family(f)) > 0 }) {
			continue
		}
		fmt.Fprintf(&doc, "\n## %s\n\n%s\n", s.title, s.text)
		for _, d := range s.charts {
			svg, err := r.draw(d)
			if err != nil {
				return nil, err
			}
			if svg == nil {
				continue
			}
			files[path.Join(chartFolder, d.file)] = svg
			fmt.Fprintf(&doc, "\n![%s](performance/%s)\n", d.title, d.file)
		}
		for _, f := range s.families {
			r.table(&doc, r.family(f))
		}
	}
	doc.WriteString(elsewhere)
	files[documentFile] = []byte(doc.String())
	return files, nil
}

const introduction = `# Performance

<!-- "make bench" writes this file and its charts, from bench/results.json and the text in bench/report. -->

All contenders of a table take turns on one server of their own, in rounds; a figure is the median over the rounds, and *longest* the
maximum. So the ratios within a table hold even on a busy machine, and figures of different tables do not compare. Each goroutine has
a context that can be cancelled. [bench/README.md](../bench/README.md) says how each scenario works, and how each library is used.
**` + "`make bench`" + `** measures all of it anew.
`

// conditions lists where and when the scenarios ran, without repetition.
func (r *Results) conditions(doc *strings.Builder) {
	for _, what := range []struct {
		title string
		of    func(Scenario) string
	}{
		{"Machine", func(s Scenario) string { return s.Machine }},
		{"Go", func(s Scenario) string { return s.Go }},
		{"Servers, on the same machine", func(s Scenario) string { return s.Server }},
		{"Date and commit", func(s Scenario) string { return s.Date + " " + s.Commit }},
	} {
		var values []string
		for _, s := range r.Scenarios {
			values = append(values, what.of(s))
		}
		slices.Sort(values)
		fmt.Fprintf(doc, "\n- %s: %s", what.title, strings.Join(slices.Compact(values), "; "))
	}
	doc.WriteString("\n")
}

// family returns the scenarios that differ only in a size, from small to large.
func (r *Results) family(name string) (all []Scenario) {
	for _, s := range r.Scenarios {
		if s.family() == name && len(s.Rows) > 0 {
			all = append(all, s)
		}
	}
	return all
}

func (r *Results) table(doc *strings.Builder, all []Scenario) {
	if len(all) == 0 {
		return
	}
	last := all[len(all)-1]
	title := strings.TrimSuffix(last.Title, ".")
	first := ""
	if len(all) > 1 {
		size := fmt.Sprint(last.size())
		title, first = strings.Replace(title, size, "N", 1), " N |"
	}
	fmt.Fprintf(doc, "\n**%s.** %s; %d rounds, load average before %s.\n\n|%s |", title, last.Server, last.Rounds, all[0].Load, first)
	for _, f := range last.Rows[0].Figures {
		fmt.Fprintf(doc, " %s |", strings.ReplaceAll(f.Name, "-", " "))
	}
	fmt.Fprintf(doc, "\n|%s---|%s\n", strings.Repeat("---:|", min(len(first), 1)), strings.Repeat("---:|", len(last.Rows[0].Figures)))
	for _, s := range all {
		for _, row := range s.Rows {
			doc.WriteString("|")
			if first != "" {
				fmt.Fprintf(doc, " %d |", s.size())
			}
			row.write(doc)
		}
	}
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
