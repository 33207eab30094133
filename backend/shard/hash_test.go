package shard

import (
	"fmt"
	"math"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
)

// names returns names such as programs use.
func names(n int) []string {
	var all []string
	for i := range n / 4 {
		all = append(all, fmt.Sprint(i), fmt.Sprintf("order:%d", i), fmt.Sprintf("/a/very/long/prefix/of/all/names/%08d/x", i), fmt.Sprintf("%c%d", 'a'+i%26, i*7919))
	}
	return all
}

func seedsOf(members ...string) []uint64 {
	var seeds []uint64
	for _, m := range members {
		seeds = append(seeds, hash(m))
	}
	return seeds
}

// Of 100 000 names each member's part is within 4 % of an equal one. Chance alone gives 1 % as a
// standard deviation, for 10 members.
func TestSpreadIsEven(t *testing.T) {
	for _, n := range []int{2, 3, 5, 10} {
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf("redis-%d", i))
		}
		seeds, counts := seedsOf(members...), make([]int, n)
		for _, name := range names(100_000) {
			counts[pick(seeds, name)]++
		}
		worst, even := 0.0, 100_000/float64(n)
		for _, c := range counts {
			worst = max(worst, math.Abs(float64(c)/even-1))
		}
		t.Logf("%d members: %v, at most %.1f %% off", n, counts, 100*worst)
		if worst > 0.04 {
			t.Errorf("%d members: %v, %.1f %% off", n, counts, 100*worst)
		}
	}
}

// Names move only to an added member, and only its part of them. They move only away from a removed
// member.
func TestFewNamesMove(t *testing.T) {
	four, five := seedsOf("a", "b", "c", "d"), seedsOf("a", "b", "c", "d", "e")
	moved := 0
	for _, name := range names(100_000) {
		before, after := pick(four, name), pick(five, name)
		if before == after {
			continue
		}
		if moved++; after != 4 {
			t.Fatalf("%q moved from %d to %d, which had been there", name, before, after)
		}
	}
	t.Logf("a fifth member: %d of 100000 names moved; with hash %% n it were 80000", moved)
	if moved < 19_400 || moved > 20_600 {
		t.Errorf("%d of 100000 names moved, want about 20000", moved)
	}
}

// Other versions, and other programs, must place names alike.
func TestPlacesNeverChange(t *testing.T) {
	o := must.Get(NewRouter("", "c", "a", "b"))(t)
	for key, want := range map[string]string{"": "b", "order:1": "c", "order:2": "a", "order:3": "b", "käse": "a", "x": "c"} {
		if got := o.Of(key); got != want {
			t.Errorf("%q: %s, want %s", key, got, want)
		}
	}
}
