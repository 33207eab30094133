package report_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/distlock/distlock/bench/report"
)

const root = "../.."

// The document and its charts say what was measured, and nothing else.
func TestDocumentIsMadeFromTheResults(t *testing.T) {
	results, err := report.Read(filepath.Join(root, report.ResultsFile))
	if err != nil {
		t.Fatal(err)
	}
	files, err := results.Files()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		got, err := os.ReadFile(filepath.Join(root, path))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what bench/results.json says: run make performance (%v)", path, err)
		}
	}
	charts, err := filepath.Glob(filepath.Join(root, "docs/performance/*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(charts) != len(files)-1 {
		t.Errorf("there are %d charts, and the document shows %d", len(charts), len(files)-1)
	}
}
