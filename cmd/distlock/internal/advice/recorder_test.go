package advice

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
)

// life is a hold of a simulated lock.
type life struct {
	name, owner string
	from, to    time.Duration
	known       bool // the server tells since when
}

// holder returns what a server says of it.
func (l life) holder(at time.Duration) driver.Holder {
	h := driver.Holder{Owner: l.owner, Held: -1, Left: -1}
	if l.known {
		h.Held = at - l.from
	}
	return h
}

// sampled returns what a Recorder makes of lives that are sampled in an interval.
func sampled(lives []life, interval, until time.Duration) []*Usage {
	r, start := NewRecorder(), time.Unix(1e9, 0)
	coming := slices.SortedStableFunc(slices.Values(lives), func(a, b life) int { return cmp.Compare(a.from, b.from) })
	var current []life
	for at := time.Duration(0); at <= until; at += interval {
		for ; len(coming) > 0 && coming[0].from <= at; coming = coming[1:] {
			current = append(current, coming[0])
		}
		current = slices.DeleteFunc(current, func(l life) bool { return l.to <= at })
		byName := map[string]*driver.Info{}
		for _, l := range current {
			if byName[l.name] == nil {
				byName[l.name] = &driver.Info{Name: l.name}
			}
			i := byName[l.name]
			i.Holders = append(i.Holders, l.holder(at))
		}
		var infos []driver.Info
		for _, i := range byName {
			infos = append(infos, *i)
		}
		r.Add(start.Add(at), infos)
	}
	return r.Usages()
}

// Advice from samples of holds, whose true quantiles are known, is right within a tenth.
func TestAdviceOfSamples(t *testing.T) {
	for _, known := range []bool{true, false} {
		random := rand.New(rand.NewPCG(1, 2))
		var lives []life
		var truth []time.Duration
		var end time.Duration
		for name := range 20 {
			at := time.Duration(0)
			for i := range 600 {
				d := time.Duration(float64(4*time.Second) * math.Exp(random.NormFloat64()/2))
				lives = append(lives, life{name: fmt.Sprint("job:", name), owner: fmt.Sprint(name, i), from: at, to: at + d, known: known})
				truth = append(truth, d)
				at += d + time.Duration(random.Int64N(int64(8*time.Second)))
			}
			end = max(end, at)
		}
		slices.Sort(truth)
		all := sampled(lives, 500*time.Millisecond, end+time.Second)
		if len(all) != 1 || all[0].Class != "job:*" {
			t.Fatalf("got %+v", all)
		}
		u := all[0]
		for _, q := range []float64{.5, .99, .999} {
			got, ok := u.Held.Quantile(q)
			want := truth[int(q*float64(len(truth)))]
			if ratio := float64(got) / float64(want); !ok || ratio < .9 || ratio > 1.1 {
				t.Errorf("since when is known: %t: quantile %g: got %v, want %v", known, q, got, want)
			}
		}
		want := max(2*truth[len(truth)*999/1000], truth[len(truth)-1]*5/4)
		if got, ok := u.FixedTTL(); !ok || math.Abs(float64(got)/float64(want)-1) > .1 {
			t.Errorf("TTL: got %v, want %v", got, want)
		}
		if _, ok := u.Wait(); ok {
			t.Error("a wait is advised, and none was seen")
		}
	}
}

// A quantile needs ten samples beyond it.
func TestTooFewSamples(t *testing.T) {
	var d samples
	for i := range 999 {
		d.add(time.Duration(i))
	}
	if _, ok := d.Quantile(.99); ok {
		t.Error("999 samples have a 99th percentile")
	}
	d.add(999)
	if got, ok := d.Quantile(.99); !ok || got != 989 {
		t.Errorf("of 1000 samples: got %d, %t", got, ok)
	}
	if _, ok := d.Quantile(.999); ok {
		t.Error("1000 samples have a 99.9th percentile")
	}
}

// A hold that goes on counts with its duration so far, and the permits of a semaphore are holds of their own.
func TestHoldsThatGoOn(t *testing.T) {
	all := sampled([]life{
		{name: "a:1", owner: "x", from: 0, to: 80 * time.Second},
		{name: "a:1", owner: "y", from: 10 * time.Second, to: 20 * time.Second},
		{name: "b", owner: "z", from: 60 * time.Second, to: 200 * time.Second},
	}, time.Second, 100*time.Second)
	if len(all) != 2 {
		t.Fatalf("got %+v", all)
	}
	a, b := all[0], all[1]
	if a.Class != "a:*" || a.Held.Count() != 2 || a.Held.Max() != 79500*time.Millisecond {
		t.Errorf("a: %+v", a)
	}
	if b.Class != "b" || b.Held.Count() != 1 || b.Held.Max() != 40500*time.Millisecond {
		t.Errorf("b: %+v", b)
	}
}
