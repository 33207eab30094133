// Package model has the specifications of the protocol in TLA+, and runs TLC on them.
package model

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/tlc"
)

var large = flag.Bool("model.large", false, "check every state of the large scenarios too, which takes minutes")

// scenario is a specification with the constants that differ from those in its .cfg file.
type scenario struct {
	name, spec string
	constants  map[string]string
	large      bool
}

var scenarios = []scenario{
	{name: "crash", spec: "Distlock"},
	{name: "extend", spec: "Distlock", constants: map[string]string{"Features": `{"extend", "min-hold"}`, "Tries": "2", "MaxFence": "2"}},
	{name: "hand-off", spec: "Distlock", constants: map[string]string{"Features": `{"hand-off"}`, "Tries": "2", "Span": "2", "MaxFence": "4"}},
	{name: "server", spec: "Distlock", constants: map[string]string{"Features": `{"server"}`, "Tries": "2", "MaxFence": "2"}},
	{name: "downgrade", spec: "Distlock", constants: map[string]string{"Features": `{"readers", "downgrade"}`, "Tries": "2"}},
	{name: "floor", spec: "Distlock", constants: map[string]string{"Features": `{"hand-off", "floor"}`, "Tries": "2", "MaxFence": "3"}},
	{name: "storage", spec: "Distlock", constants: map[string]string{"Features": `{"storage"}`, "MaxNet": "1"}},
	{name: "queue", spec: "Queue"},
	{name: "plain", spec: "Plain"},
	{name: "record", spec: "Record"},
	{name: "engine", spec: "Engine"},
	{name: "large: duplicates", spec: "Distlock", large: true, constants: map[string]string{"Features": `{"crash", "duplicate"}`}},
	{name: "large: hand-off and storage", spec: "Distlock", large: true,
		constants: map[string]string{"Features": `{"hand-off", "storage"}`, "Tries": "2", "Span": "2", "MaxFence": "4"}},
	{name: "large: downgrade", spec: "Distlock", large: true,
		constants: map[string]string{"Features": `{"readers", "downgrade", "extend"}`, "Tries": "2"}},
	{name: "large: server", spec: "Distlock", large: true, constants: map[string]string{"Features": `{"server", "extend"}`}},
	{name: "large: queue", spec: "Queue", large: true,
		constants: map[string]string{"Processes": `{"p", "q", "r", "s"}`, "MaxDead": "2", "TTL": "8"}},
	{name: "large: plain", spec: "Plain", large: true, constants: map[string]string{"MaxFence": "4", "MaxBreaks": "2"}},
	{name: "large: engine", spec: "Engine", large: true, constants: map[string]string{"TTL": "2", "MaxClock": "3"}},
	{name: "large: record", spec: "Record", large: true, constants: map[string]string{"TTL": "2", "Repeats": "TRUE"}},
}

func scenarioOf(name string) scenario {
	for _, s := range scenarios {
		if s.name == name {
			return s
		}
	}
	panic("no scenario " + name)
}

// mutants are rules that are broken on purpose, each with a promise that does not hold without it.
var mutants = []struct{ name, scenario, promise string }{
	{"trust-from-answer", "crash", "OneHolder"},
	{"push-extends-trust", "crash", "OneHolder"},
	{"cached-renewal", "server", "OneHolder"},
	{"owner-used-twice", "crash", "OneHolder"},
	{"late-request-undercuts", "extend", "OneHolder"},
	{"release-does-not-wait", "crash", "OneCall"},
	{"storage-does-not-check", "storage", "NoLostUpdate"},
	{"renewal-revives", "crash", "StoreHasOneHolder"},
	{"release-by-name", "crash", "OnlyOwnerReleases"},
	{"hand-off-keeps-fence", "hand-off", "FencesIncrease"},
	{"floor-is-ignored", "floor", "FloorsHold"},
	{"floor-lowers", "floor", "FencesIncrease"},
	{"downgrade-goes-on", "downgrade", "OneHolder"},
	{"late-downgrade-counts", "downgrade", "FencesIncrease"},
	{"dead-place-stays", "queue", "QueueMovesOn"},
	{"release-wakes-all", "queue", "OneWakeUp"},
	{"queue-is-passed", "queue", "NoOnePasses"},
	{"fence-before-set", "plain", "FencesIncrease"},
	{"no-read-back", "plain", "FencesIncrease"},
	{"exists-before-delete", "plain", "NoWakeUpLost"},
	{"grant-past-queue", "plain", "NoOnePasses"},
	{"reader-passes-writer", "plain", "NoOnePasses"},
	{"release-wakes-one", "plain", "NoWakeUpLost"},
	{"watched-since-another-version", "record", "OneHolder"},
	{"watched-from-the-question", "record", "OneHolder"},
	{"owner-is-proof", "record", "OneHolder"},
	{"trusted-from-the-answer", "record", "OneHolder"},
	{"unconditional-renewal", "record", "OneHolder"},
	{"unconditional-release", "record", "OnlyOwnerReleases"},
	{"release-drops-counter", "record", "FencesIncrease"},
	{"no-before", "engine", "NothingReturns"},
	{"end-from-lower-bound", "large: engine", "TrustIsBacked"},
	{"lost-write-by-timer", "engine", "NothingReturns"},
}

// TestLongModel looks at every state of the small scenarios.
func TestLongModel(t *testing.T) {
	for _, s := range scenarios {
		if s.large && !*large {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			r := tlc.Check(t, tlc.Run{Dir: ".", Spec: s.spec, Config: s.config(t, ""), Large: *large})
			if !r.Accepted() {
				t.Errorf("%s", r.Output)
			}
			t.Log(r.States())
		})
	}
}

// TestLongModelMutants breaks one rule at a time.
func TestLongModelMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			s := scenarioOf(m.scenario)
			c := s.config(t, m.promise)
			c = replace(t, c, `Mutant = .*`, fmt.Sprintf("Mutant = %q", m.name))
			r := tlc.Check(t, tlc.Run{Dir: ".", Spec: s.spec, Config: c, Large: *large})
			if r.Accepted() || !r.Violates(m.promise) {
				t.Errorf("%s was to be violated:\n%s", m.promise, r.Output)
			}
			t.Log(r.States())
		})
	}
}

// config returns the scenario's configuration: with all promises of the specification, or with one.
func (s scenario) config(t *testing.T, promise string) string {
	t.Helper()
	b := must.Get(os.ReadFile(s.spec + ".cfg"))(t)
	c := string(b)
	for name, value := range s.constants {
		c = replace(t, c, `\b`+name+` = .*`, name+" = "+value)
	}
	if promise == "" {
		return c
	}
	kind := "INVARIANTS "
	if !regexp.MustCompile(`INVARIANTS.*\b` + promise + `\b`).MatchString(c) {
		kind = "PROPERTIES "
		c = replace(t, c, `(?m)^INVARIANTS .*\n`, "")
	} else {
		c = replace(t, c, `(?m)^PROPERTIES .*\n`, "")
	}
	return replace(t, c, kind+`.*\b`+promise+`\b.*`, kind+promise)
}

// replace replaces the only match of a pattern.
func replace(t *testing.T, s, pattern, by string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	if n := len(re.FindAllString(s, -1)); n != 1 {
		t.Fatalf("%d matches of %s in\n%s", n, pattern, s)
	}
	return re.ReplaceAllLiteralString(s, by)
}
