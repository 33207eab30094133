package trace

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/testkit/tlc"
)

// Store says how exact a store and its recording are.
type Store struct {
	Late         time.Duration // for how long a request may be held back after its caller has gone on
	Early, Slack time.Duration // by how much holds may end before and after their time
	Queues       bool          // places in the queue are followed, which takes long if many calls have no answer
	Passes       bool          // an attempt may take a free lock, find only then that others are queued, and go back
}

// Unanswered returns how many calls have no answer.
func Unanswered(events []Event) (n int) {
	for _, e := range events {
		switch {
		case e.Is == "call":
			n++
		case e.Is == "return" && e.Answer != "unknown":
			n--
		}
	}
	return n
}

// Verdict is whether the specification allows a run, and what TLC says.
type Verdict struct {
	Allowed bool
	Reached int // of the events, where it is not
	tlc.Result
}

var reached = regexp.MustCompile(`<<"reached", \d+>>`)

// Judge looks for instants at which the store of proof/model/Store.tla can have done what was recorded of one lock. model is
// the folder of the specification.
func Judge(t *testing.T, model string, store Store, events []Event) Verdict {
	t.Helper()
	config := fmt.Sprintf(`SPECIFICATION Spec
CONSTANTS
  Mutant = "none"
  TurnLife = %d
  Late = %d
  Early = %d
  Slack = %d
  Queues = %s
  Passes = %s
INVARIANTS Unfinished
CHECK_DEADLOCK FALSE
`, driver.TurnLife.Microseconds(), store.Late.Microseconds(), store.Early.Microseconds(), store.Slack.Microseconds(),
		strings.ToUpper(fmt.Sprint(store.Queues)), strings.ToUpper(fmt.Sprint(store.Passes)))
	r := tlc.Check(t, tlc.Run{Dir: model, Spec: "Trace", Config: config, Modules: map[string]string{"Recorded": Module(events)}})
	// All events can happen where the invariant that some are left does not hold.
	return Verdict{r.Violates("Unfinished"), len(reached.FindAllString(r.Output, -1)) - 1, r}
}

// Module writes the events of one lock, in their order, as a module, with each call's answer and end. Times begin with
// the first event, and fences become their places in the order of all: TLC's numbers have 32 bits.
func Module(events []Event) string {
	if len(events) == 0 {
		return "---- MODULE Recorded ----\nEvents == <<>>\nCalls == <<>>\n====\n"
	}
	began, rank := events[0].At, ranks(events)
	owners, numbers := map[string]string{}, map[int]int{}
	type call struct{ at, returned *Event }
	var calls []call
	var list []string
	for i := range events {
		e := &events[i]
		if owners[e.Owner] == "" {
			owners[e.Owner] = fmt.Sprintf(`"owner %d"`, len(owners)+1)
		}
		switch e.Is {
		case "call":
			calls = append(calls, call{at: e})
			numbers[e.Call] = len(calls)
		case "return":
			calls[numbers[e.Call]-1].returned = e
		}
		list = append(list, fmt.Sprintf(`[is |-> %q, at |-> %d, call |-> %d, owner |-> %s, fence |-> %d, trust |-> %d]`,
			e.Is, (e.At-began).Microseconds(), numbers[e.Call], owners[e.Owner], rank(e.Fence), e.TTL.Microseconds()))
	}
	var table []string
	for _, c := range calls {
		if c.returned == nil {
			c.returned = &Event{Answer: "unknown", At: events[len(events)-1].At}
		}
		mode := "write"
		if c.at.Mode == driver.Read {
			mode = "read"
		}
		table = append(table, fmt.Sprintf(`[kind |-> %q, owner |-> %s, mode |-> %q, ttl |-> %d, queue |-> %s, answer |-> %q, fence |-> %d, last |-> %d, end |-> %d]`,
			c.at.Kind, owners[c.at.Owner], mode, c.at.TTL.Microseconds(), strings.ToUpper(fmt.Sprint(c.at.Queue)),
			c.returned.Answer, rank(c.returned.Fence), rank(c.returned.Last), (c.returned.At-began).Microseconds()))
	}
	return "---- MODULE Recorded ----\nEvents == <<\n  " + strings.Join(list, ",\n  ") +
		">>\nCalls == <<\n  " + strings.Join(table, ",\n  ") + ">>\n====\n"
}

// ranks returns the place of a fence among all fences. The place of 0, which stands for none, is 0.
func ranks(events []Event) func(uint64) int {
	all := []uint64{0}
	for _, e := range events {
		all = append(all, e.Fence, e.Last)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return func(fence uint64) int {
		i, _ := slices.BinarySearch(all, fence)
		return i
	}
}
