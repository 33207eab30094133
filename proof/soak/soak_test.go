//go:build linux

// Package soak looks for what grows while locks are taken and released for a long time: memory, goroutines, open
// files, and what the stores keep.
package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/distlock/distlock/backend/all"
	"github.com/distlock/distlock/internal/testkit"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/proof/internal/lockserver"
)

// The defaults cost little CPU, as the test runs beside others.
var (
	length = flag.Duration("soak.for", time.Minute, "time of the load, once each name was used")
	names  = flag.Int("soak.names", 2000, "names of all stores")
	rate   = flag.Float64("soak.rate", 240, "turns per second, of all stores")
	on     = flag.String("soak.on", strings.Join(slices.Sorted(maps.Keys(stores)), ","), "stores")
	save   = flag.Bool("save", false, "write the table into proof/RESULTS.md")
)

const (
	// sampleEvery is the time between two samples.
	sampleEvery = time.Second

	// rests is how often the load pauses for a sample, since a gauge under load shows how busy the machine is. It is
	// more than one for each window of the judge.
	rests = 20

	// least is the time of a load from which growth is a failure. In less, a machine that others make busier looks
	// like a leak; what must be back in the end is found all the same.
	least = 10 * time.Minute
)

// childEnv has the URL of the store, for a process that serves it.
const childEnv = "DISTLOCK_SOAK_CHILD"

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		fmt.Println("error:", serve(url))
		os.Exit(1)
	}
	os.Exit(testserver.Run(m))
}

// figuresPath is where a child shows its figures.
const figuresPath = "/figures"

type figures struct{ Heap, Goroutines, Files float64 }

// serve serves a store's locks, and this process's figures, until the process is killed. It prints the address.
func serve(url string) error {
	s, err := lockserver.Open(url)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", s)
	mux.HandleFunc(figuresPath, func(w http.ResponseWriter, _ *http.Request) {
		open, err := files(os.Getpid())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(figures{heap(), float64(testkit.Goroutines()), open})
	})
	fmt.Println(l.Addr())
	return http.Serve(l, mux)
}

// startChild starts a process that serves a store, and returns its address.
func startChild(t *testing.T, url string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), childEnv+"="+url), os.Stderr
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(cmd))
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(addr, "error") {
		t.Fatalf("the child says %q, %v", addr, err)
	}
	return strings.TrimSpace(addr)
}

// Locks of all kinds are taken on all stores at once, and left in all ways; connections are cut. Nothing grows
// in the second half, and in the end nothing is left.
func TestLongSoak(t *testing.T) {
	s := &soak{t: t}
	for name := range strings.SplitSeq(*on, ",") {
		start, ok := stores[name]
		if !ok {
			t.Fatalf("-soak.on: %q: want some of %s", name, strings.Join(slices.Sorted(maps.Keys(stores)), ","))
		}
		s.stores = append(s.stores, start(t))
	}
	s.gauges = own()
	for _, st := range s.stores {
		s.gauges = append(s.gauges, st.gauges...)
	}
	s.run()
}

// soak is one run.
type soak struct {
	t      *testing.T
	stores []*store
	gauges []*gauge
	gate   sync.RWMutex // of all loads
}

func (s *soak) run() {
	began := time.Now()
	s.begin()
	for _, st := range s.stores {
		st.open(s.t, max(*names/len(s.stores), 1), &s.gate)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	var work sync.WaitGroup
	for _, st := range s.stores {
		work.Go(func() { st.load.run(ctx, *rate/float64(len(s.stores))) })
		if st.proxy != nil {
			work.Go(func() { st.load.cut(ctx, st.proxy) })
		}
	}
	s.awaitNames()
	s.t.Logf("each name was used after %v", time.Since(began).Round(time.Second))
	s.watch(time.Now())
	stop()
	work.Wait()
	for _, st := range s.stores {
		st.close(s.t)
		st.load.judge(s.t, st.name)
		s.t.Logf("%s: %v", st.name, st.load)
	}
	s.drain()
	s.judge()
}

// begin notes what there is before the first client. Series have room for all samples, so as not to grow
// themselves.
func (s *soak) begin() {
	for range 2 { // the first one makes connections
		for _, g := range s.gauges {
			v, err := g.read()
			if err != nil {
				s.t.Fatalf("%s: %v", g.name, err)
			}
			g.start = v
		}
	}
	for _, g := range s.gauges {
		g.values = make([]float64, 0, int(*length/sampleEvery)+rests)
	}
}

// awaitNames waits until each name was used, so that what stores keep for a name is there.
func (s *soak) awaitNames() {
	began, shown := time.Now(), time.Now()
	for _, st := range s.stores {
		for int(st.load.done.Load()) < st.load.names {
			time.Sleep(10 * time.Millisecond)
			if time.Since(shown) > time.Minute {
				shown = time.Now()
				s.t.Logf("%v: %d turns of %s", time.Since(began).Round(time.Second), st.load.done.Load(), st.name)
			}
		}
	}
}

// watch samples until the time is over, and gives a sign of life each minute.
func (s *soak) watch(began time.Time) {
	rested, shown := began, began
	for time.Since(began) < *length {
		time.Sleep(sampleEvery)
		if time.Since(rested) >= *length/rests {
			s.rest()
			rested = time.Now()
		} else {
			s.sample()
		}
		if g := s.gauges; time.Since(shown) > time.Minute {
			shown = time.Now()
			s.t.Logf("%v: %s %.1f, %s %.0f, %s %.0f", time.Since(began).Round(time.Second),
				g[0].name, last(g[0].values), g[1].name, last(g[1].values), g[2].name, last(g[2].values))
		}
	}
}

// rest samples while no turn is in flight.
func (s *soak) rest() {
	s.gate.Lock()
	defer s.gate.Unlock()
	time.Sleep(100 * time.Millisecond) // what turns leave to the background
	s.sample()
}

func (s *soak) sample() {
	for _, g := range s.gauges {
		g.sample()
	}
}

func last(values []float64) float64 { return values[len(values)-1] }

// drain waits until all that was to be gone is gone. A busy machine has time.
func (s *soak) drain() {
	wait.Sleep(s.t.Context(), 2*ttl)
	for began := time.Now(); ; time.Sleep(time.Second) {
		all := true
		for _, g := range s.gauges {
			all = g.returned() && all
		}
		if all || time.Since(began) > 3*time.Minute {
			s.t.Logf("drained %v after two TTLs", time.Since(began).Round(time.Second))
			return
		}
		s.sweep()
	}
}

// sweep helps stores that remove remains only as they are used.
func (s *soak) sweep() {
	for _, st := range s.stores {
		if st.sweep != nil && slices.ContainsFunc(st.gauges, func(g *gauge) bool { return !g.returned() }) {
			expect.OK(s.t, st.sweep(), st.name)
		}
	}
}

// judge prints the table, and fails for what has grown or is left.
func (s *soak) judge() {
	var rows []string
	for _, g := range s.gauges {
		v := judge(g.values, g.slack)
		verdict := "flat"
		switch {
		case g.err != nil:
			verdict = "unknown"
			s.t.Errorf("%s: %v", g.name, g.err)
		case g.back && g.end > g.start:
			verdict = "LEFT"
			s.t.Errorf("%s: %v in the end, %v at the start", g.name, g.end, g.start)
		case !v.flat() && *length < least:
			verdict = "rises"
		case !v.flat():
			verdict = "GROWS"
			s.t.Errorf("%s grew by %.2f in the second half; allowed %.2f", g.name, v.growth, v.allowed)
		}
		perHour := v.growth / (*length / 2).Hours()
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |",
			g.name, show(g.start), show(v.half), show(v.last), show(g.end), show(perHour), verdict))
	}
	turns := int64(0)
	for _, st := range s.stores {
		turns += st.load.done.Load()
	}
	head := fmt.Sprintf("%v after each of %d names was used, %d turns.", *length, *names, turns)
	const columns = "| | start | half | last | end | per hour | |\n|---|---|---|---|---|---|---|\n"
	table := columns + strings.Join(rows, "\n") + "\n"
	s.t.Logf("%s\n\n%s", head, table)
	if *save && !s.t.Failed() {
		record(s.t, head+"\n\n"+table)
	}
}

// show shows a number in few digits.
func show(v float64) string {
	if v == math.Trunc(v) || math.Abs(v) >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// report is the page that has the table, between two marks.
const report = "../RESULTS.md"

// record writes the table into the page.
func record(t *testing.T, table string) {
	before, after := aroundTable(t)
	must.OK(t, os.WriteFile(report, []byte(before+table+after), 0o644))
}

// aroundTable returns the page without its table.
func aroundTable(t *testing.T) (before, after string) {
	const from, to = "<!-- soak: written by make soak -->\n", "<!-- /soak -->\n"
	page := must.Get(os.ReadFile(report))(t)
	before, rest, found := strings.Cut(string(page), from)
	_, after, ends := strings.Cut(rest, to)
	if !found || !ends {
		t.Fatalf("%s has no %s", report, strings.TrimSpace(from))
	}
	return before + from, to + after
}

func TestReportHasAPlaceForTheTable(t *testing.T) { aroundTable(t) }
