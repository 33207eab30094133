package api

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

var update = flag.Bool("update", false, "write the listing anew")

const listing = "../../docs/api.txt"

func TestListing(t *testing.T) {
	got := must.Get(Listing("../.."))(t)
	for _, must := range []string{"package distlock // .", "func (m *Mutex) Lock(ctx context.Context) (*Lease, error)", "package driver // driver"} {
		if !strings.Contains(got, must) {
			t.Errorf("the listing lacks %q", must)
		}
	}
	if *update {
		must.OK(t, os.WriteFile(listing, []byte(got), 0o644))
		return
	}
	want := must.Get(os.ReadFile(listing))(t)
	if got != string(want) {
		t.Error("the public API is not what docs/api.txt lists; if the change is meant, run: make api")
	}
}
