// Package oddnames locks names and stores metadata that no user would choose, at random: control characters, quotes,
// slashes, percent signs, braces, NUL, bytes that are not UTF-8, 64 KiB.
package oddnames

import (
	"context"
	"errors"
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/locktest"
)

var (
	seedFlag = flag.Uint64("odd.seed", 0, "seed of the test with odd names; 0: another one each time")
	manyFlag = flag.Int("odd.names", 30, "how many names that test locks")
)

// pieces are the parts of names and metadata.
var pieces = []string{
	"a", "B", "é", "e\u0301", "日本", "🔒", "\u202e", "\ufeff", "\ufffd", " ", "\t", "\n", "\r\n", "\x01", "\x1b[31m", "\x7f", "\u0085", "\u2028",
	"'", "''", `"`, "`", `\`, `\\`, `\n`, `\u0000`, "/", "//", "/../", "/./", "..", ".", "%", "%s", "%00", "%2F", "%25", "{", "}", "{}", "{a}", "${x}", "{{.}}",
	"*", "?", "[a-z]", "_", ":", "::", ";", "--", "#", "&", "=", "+", ",", "|", "<script>", "$1", "~", "^", "!", "@",
	"distlock:fence", ":timeout", "distlock_line:", "lock-0000000001", "leases", "zookeeper", "; DROP TABLE distlock_locks; --", "null", "{\"owner\":1}",
}

// alone are names that mean something else in paths, patterns and protocols.
var alone = []string{"/", ".", "..", "*", "%2F", "-", " "}

// broken are pieces that no name may have.
var broken = []string{"\x00", "\xff", "\xc3", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80"}

// Try takes locks of odd names with odd metadata through a client, looks at each, and releases it. The store must
// return both as they were given, or refuse them by a short ErrInvalid. At least a third must be granted. outside, if
// not nil, returns what the store has that is no lock's under the prefix. Try closes the backend.
func Try(t *testing.T, b driver.Backend, outside func() []string) {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	f := &fuzzer{T: t, rnd: rand.New(rand.NewPCG(seed, 0))}
	defer func() {
		if t.Failed() {
			t.Logf("again: -odd.seed=%d", seed)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	locks, err := distlock.New(b, locktest.Patient())
	if err != nil {
		t.Fatal(err)
	}
	for i := range *manyFlag {
		name := f.name()
		if i < len(alone) {
			name = alone[i]
		}
		f.try(ctx, locks, name, map[string]string{f.text(3): f.metaText(), "note": f.metaText()})
	}
	if f.granted < *manyFlag/3 {
		t.Errorf("only %d locks of %d were granted", f.granted, *manyFlag)
	}
	if outside != nil {
		for _, found := range outside() {
			t.Errorf("outside of the prefix: %q", found)
		}
	}
	if err := locks.Close(); err != nil {
		t.Error(err)
	}
}

type fuzzer struct {
	*testing.T
	rnd     *rand.Rand
	granted int
}

// text joins up to n pieces.
func (f *fuzzer) text(n int) string {
	var s strings.Builder
	for range 1 + f.rnd.IntN(n) {
		s.WriteString(pieces[f.rnd.IntN(len(pieces))])
	}
	return s.String()
}

// name returns a name of some pieces. One in ten can't be a name, and one in ten has 64 KiB.
func (f *fuzzer) name() string {
	name := f.text(12)
	switch f.rnd.IntN(10) {
	case 0:
		at := f.rnd.IntN(len(name) + 1)
		return name[:at] + broken[f.rnd.IntN(len(broken))] + name[at:]
	case 1:
		return name + strings.Repeat("x", 64<<10-len(name))
	}
	return name
}

// metaText is text that may be broken.
func (f *fuzzer) metaText() string {
	text := f.text(20)
	if f.rnd.IntN(20) == 0 {
		text += broken[f.rnd.IntN(len(broken))]
	}
	return text
}

func (f *fuzzer) try(ctx context.Context, locks *distlock.Client, name string, meta map[string]string) {
	f.Helper()
	mutex := locks.Mutex(name, distlock.WithMeta(meta))
	lease, err := mutex.TryLock(ctx)
	if err != nil {
		if !errors.Is(err, distlock.ErrInvalid) || len(err.Error()) > 1500 {
			f.Errorf("%s with %q: want the lock, or a short ErrInvalid: %.2000v", driver.Quote(name), meta, err)
		}
		return
	}
	f.granted++
	if !utf8.ValidString(name) || strings.ContainsRune(name, 0) {
		f.Errorf("%q is no name, and was locked", name)
	}
	f.look(ctx, locks, name, meta)
	if err := lease.Unlock(ctx); err != nil {
		f.Errorf("unlock %s: %v", driver.Quote(name), err)
	}
}

// look wants Inspect and List to show a lock that is held.
func (f *fuzzer) look(ctx context.Context, locks *distlock.Client, name string, meta map[string]string) {
	f.Helper()
	info, err := locks.Inspect(ctx, name)
	if errors.Is(err, distlock.ErrUnsupported) {
		return
	}
	if err != nil || info.Name != name || len(info.Holders) != 1 {
		f.Errorf("inspect %s: %s has %d holders, %v", driver.Quote(name), driver.Quote(info.Name), len(info.Holders), err)
		return
	}
	for key, want := range meta {
		if got, ok := info.Holders[0].Meta[key]; !ok || got != want {
			f.Errorf("the metadata %q of %s is %q, want %q", key, driver.Quote(name), got, want)
		}
	}
	listed := map[string]bool{}
	for found, err := range locks.List(ctx, name) {
		if err != nil {
			f.Errorf("list %s: %v", driver.Quote(name), err)
			return
		}
		listed[found] = true
	}
	if !listed[name] || len(listed) != 1 {
		f.Errorf("%s is listed as %.300q", driver.Quote(name), slices.Collect(maps.Keys(listed)))
	}
}
