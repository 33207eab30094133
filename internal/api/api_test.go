package api

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the listing anew")

const listing = "../../docs/api.txt"

func TestListing(t *testing.T) {
	got, err := Listing("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, must := range []string{"package distlock // .", "func (m *Mutex) Lock(ctx context.Context) (*Lease, error)", "package driver // driver"} {
		if !strings.Contains(got, must) {
			t.Errorf("the listing lacks %q", must)
		}
	}
	if *update {
		if err := os.WriteFile(listing, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(listing)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Error("the public API is not what docs/api.txt lists; if the change is meant, run: make api")
	}
}
