package pictures

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the drawings anew")

const docs = "../../docs"

// The documents show what the code draws.
func TestFiles(t *testing.T) {
	for name, drawn := range Pictures() {
		path := filepath.Join(docs, name)
		if *update {
			if err := os.WriteFile(path, []byte(drawn), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		stored, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(stored) != drawn {
			t.Errorf("docs/%s is not what the code draws; if the change is meant, run: go test ./internal/pictures -update", name)
		}
	}
}

// A browser draws nothing of a file that is no XML.
func TestDrawingsAreSmallAndWellFormed(t *testing.T) {
	for name, drawn := range Pictures() {
		if len(drawn) > 10_000 {
			t.Errorf("%s has %d bytes; want 10000 at most", name, len(drawn))
		}
		d := xml.NewDecoder(strings.NewReader(drawn))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}
