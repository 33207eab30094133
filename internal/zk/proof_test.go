package zk

import (
	"testing"
	"time"
)

func TestProof(t *testing.T) {
	zero := time.Now()
	after := func(s float64) time.Time { return zero.Add(time.Duration(s * float64(time.Second))) }
	p := proof{timeout: 12 * time.Second}
	want := func(what string, s float64) {
		t.Helper()
		if got := p.until.Sub(zero); got != time.Duration(s*float64(time.Second)) {
			t.Errorf("%s: until %v, want %vs", what, got, s)
		}
	}
	p.created(after(0))
	want("a new session", 12)
	for s := 2.0; s <= 8; s += 2 {
		p.answered(after(s), after(s))
	}
	want("any server answers", 12)
	p.agreed(after(2))
	want("what was sent a moment ago may not be known to the leader", 12)
	p.agreed(after(6))
	want("what was sent a quarter earlier is", 14)
	p.agreed(after(4))
	want("it never goes back", 14)
	p.answered(after(8.1), after(8.1))
	p.agreed(after(11.05))
	want("what follows closely is not kept apart", 20)
	p.answered(after(14), after(18))
	p.agreed(after(20))
	want("what was long on its way may have come a moment ago", 20)
	p.agreed(after(21))
	want("from its answer on the time counts", 26)
	p.connected(after(30))
	want("a connection proves nothing", 26)
	p.agreed(after(30.1))
	want("but a write on it does: the leader knows of the connection at once", 42)
}

func TestProofKeepsFewMarks(t *testing.T) {
	p := proof{timeout: time.Second}
	now := time.Now()
	p.created(now)
	for range 100_000 {
		now = now.Add(100 * time.Microsecond)
		p.answered(now, now)
		p.agreed(now.Add(-time.Millisecond))
		if len(p.marks) > 2*markPart {
			t.Fatalf("%d marks", len(p.marks))
		}
	}
	if left := p.until.Sub(now); left < p.timeout*2/3 {
		t.Errorf("%v are left of %v, under constant use", left, p.timeout)
	}
}
