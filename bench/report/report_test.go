package report_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/bench/report"
	"github.com/distlock/distlock/internal/testkit/must"
)

const root = "../.."

// The document and its charts say what was measured, and nothing else.
func TestDocumentIsMadeFromTheResults(t *testing.T) {
	files := isMadeFromTheResults(t, root)
	charts := must.Get(filepath.Glob(filepath.Join(root, "docs/performance/*")))(t)
	if len(charts) != len(files)-2 {
		t.Errorf("there are %d charts, and the document shows %d", len(charts), len(files)-1)
	}
}

// isMadeFromTheResults compares the document and its charts with the results in the project's folder, and returns them.
func isMadeFromTheResults(t *testing.T, root string) map[string][]byte {
	t.Helper()
	results := must.Get(report.Read(filepath.Join(root, report.ResultsFile)))(t)
	files := must.Get(results.Files())(t)
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what bench/results.json says: run make performance (%v)", path, err)
		}
	}
	return files
}

// The results are rounded when they are written, and the charts must not be drawn from more digits.
func TestChartsOfRoundedResults(t *testing.T) {
	results := must.Get(report.Read(filepath.Join(root, report.ResultsFile)))(t)
	for _, s := range results.Scenarios {
		for _, row := range s.Rows {
			for i := range row.Figures {
				row.Figures[i].Value *= 1.0004
			}
		}
	}
	elsewhere := t.TempDir()
	must.OK(t, os.MkdirAll(filepath.Join(elsewhere, filepath.Dir(report.ResultsFile)), 0o755))
	must.OK(t, results.Write(elsewhere))
	isMadeFromTheResults(t, elsewhere)
}
