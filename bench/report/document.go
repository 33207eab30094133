package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// The places below the project's root.
const (
	ResultsFile  = "bench/results.json"
	tablesFile   = "bench/RESULTS.md"
	documentFile = "docs/performance.md"
	chartFolder  = "docs/performance"
)

// Write writes the results, the documents and the charts into their places below the project's root.
func (r *Results) Write(root string) error {
	var lines []string // one a scenario
	for _, s := range r.Scenarios {
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		lines = append(lines, string(b))
	}
	text := `{"Scenarios": [` + "\n" + strings.Join(lines, ",\n") + "\n]}\n"
	if err := os.WriteFile(root+"/"+ResultsFile, []byte(text), 0o644); err != nil {
		return err
	}
	stored, err := Read(root + "/" + ResultsFile) // which has rounded
	if err != nil {
		return err
	}
	files, err := stored.Files()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(root+"/"+chartFolder, 0o755); err != nil {
		return err
	}
	for path, text := range files {
		if err := os.WriteFile(root+"/"+path, text, 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

// Files returns the document for users, its charts, and the document with all tables, by path from the project's root.
func (r *Results) Files() (map[string][]byte, error) {
	files := map[string][]byte{tablesFile: r.tables()}
	var doc strings.Builder
	doc.WriteString(introduction)
	r.conditions(&doc)
	for _, q := range questions {
		table := r.answer(q)
		if table == "" {
			continue
		}
		fmt.Fprintf(&doc, "\n## %s\n\n%s\n", q.title, q.text)
		svg, err := r.draw(q.chart)
		if err != nil {
			return nil, err
		}
		if svg != nil {
			files[path.Join(chartFolder, q.chart.file)] = svg
			fmt.Fprintf(&doc, "\n![%s](performance/%s)\n", q.chart.title, q.chart.file)
		}
		doc.WriteString(table)
	}
	files[documentFile] = []byte(doc.String())
	return files, nil
}

// tables returns the document that has every table.
func (r *Results) tables() []byte {
	var doc strings.Builder
	doc.WriteString(allTables)
	for _, s := range sections {
		if !slices.ContainsFunc(s.families, func(f string) bool { return len(r.family(f)) > 0 }) {
			continue
		}
		fmt.Fprintf(&doc, "\n## %s\n\n%s\n", s.title, s.text)
		for _, f := range s.families {
			doc.WriteString(Table(r.family(f)...))
		}
	}
	return []byte(doc.String())
}

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
