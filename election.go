package distlock

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// Election is a lock that is held for as long as possible, by one leader at a time. A term is a
// lease, and its fence is the term's number. Like a Mutex it is a name and options, not a state.
//
// It is the same lock as the Mutex of that name, so distlock run, Inspect and ForceUnlock work on it.
// Nothing is handed off inside a process: all candidates are equal, wherever they run.
type Election struct{ l lock }

// Election returns an election for name. Bad names and options are reported by the first call that
// uses them, as ErrInvalid or ErrUnsupported. WithMeta is how a leader publishes its address.
//
// Where the backend can deliver requests (Caps.Revocable), the leader steps down when another program
// calls Client.Revoke. With the option Revocable, the function given there decides instead.
func (c *Client) Election(name string, opts ...LockOption) *Election {
	opts = append(slices.Clip(opts), WithoutHandoff())
	return &Election{lock{c, c.newSpec(name, Exclusive, 0, opts)}}
}

// away is how long a candidate that gave up its term stays away. A free lock is kept that long for the
// first in its queue, and without a queue, every waiter makes an attempt within it.
const away = driver.TurnLife

// Lead campaigns until it is elected, calls lead, and resigns when lead returns. Then it campaigns
// again. It never returns nil.
//
// The context of lead is the term's. Work that can't be cancelled passes its Fence to the storage. The
// context ends, and lead must return soon, when
//
//   - the term is lost: with cause ErrLost, before another candidate can lead. Lead then campaigns
//     again at once;
//   - the leader is asked to step down: with cause ErrRevoked. The lock is held until lead returns;
//   - ctx ends, with its cause, or the client is closed, with cause ErrClosed.
//
// If lead returns nil before that, or after it was asked to step down, the lock is released and the
// next candidate leads at once. This one campaigns again after 2 s, so that others get their turn.
//
// An error that lead returns during its term ends Lead, which returns it. Once the term is over, an
// error is a consequence of that and does not end Lead. If lead panics, the lock is released and the
// panic continues.
//
// When ctx ends, the lock is released, and Lead returns an *Error that matches ctx.Err(), joined with
// the errors of lead and of the release, if any. ErrInvalid, ErrUnsupported and ErrClosed end it, and
// WaitAtMost, which bounds each campaign. An unreachable backend does not, nor one that refuses the login or a right for the
// moment: Lead waits until it answers, and Observer.Unanswered tells why it does not.
func (e *Election) Lead(ctx context.Context, lead func(term context.Context) error) error {
	if lead == nil {
		return noWork("lead", e.l.s.name)
	}
	for {
		gaveUp, err := e.term(ctx, lead)
		if err == nil && gaveUp {
			err = e.standAside(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// term campaigns and leads for one term. It reports whether the term was given up and not lost. An
// error ends Lead.
func (e *Election) term(ctx context.Context, lead func(context.Context) error) (gaveUp bool, err error) {
	asked, ask := context.WithCancel(context.Background())
	defer ask()
	lease, err := e.revocable(ask).lock(endingWith(ctx), "lead")
	if err != nil {
		return false, err
	}
	term, end := context.WithCancelCause(lease.Context())
	stop := context.AfterFunc(asked, func() {
		end(&Error{Op: "lead", Name: e.l.s.name, Kind: ErrRevoked})
	})
	defer stop()
	err, over, released := serve(lease, term, lead)
	switch {
	case ctx.Err() != nil:
		if errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) {
			err = nil
		}
		return false, errors.Join(err, cutShort("lead", e.l.s.name, ctx, nil), released)
	case err != nil && over == nil:
		return false, join(err, released)
	}
	return over == nil || errors.Is(over, ErrRevoked), nil
}

// serve calls lead and releases the lock, even if lead panics. over is why the term was over when
// lead returned; nil if it was not.
func serve(lease *Lease, term context.Context, lead func(context.Context) error) (err, over, released error) {
	defer func() { released = lease.Unlock(term) }()
	err = lead(term)
	if over = lease.Err(); over == nil {
		over = context.Cause(term)
	}
	return err, over, nil
}

// revocable returns the lock of one term, for which ask is called when the leader is to step down.
func (e *Election) revocable(ask func()) lock {
	if e.l.s.revoked != nil || !e.l.c.caps.Revocable.Has(Exclusive) {
		return e.l
	}
	s, terms := *e.l.s, *e.l.s.lockTerms
	terms.revoked = func(*Lease) { ask() }
	s.lockTerms = &terms
	return lock{e.l.c, &s}
}

// standAside lets the other candidates have their turn.
func (e *Election) standAside(ctx context.Context) error {
	t := time.NewTimer(away)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return cutShort("lead", e.l.s.name, ctx, nil)
	case <-e.l.c.done:
		return fail("lead", e.l.s.name, ErrClosed)
	}
}

// Leader returns the leader, as Inspect shows it: its Fence is the number of its term, and its Meta
// has what it was given by WithMeta. Another may lead by the time Leader returns: only fences protect
// what leaders write.
//
// It returns ErrNoLeader if there is none, and not an empty Holder, which a caller without a check
// would try to reach. Other errors come from Client.Inspect.
func (e *Election) Leader(ctx context.Context) (Holder, error) {
	if e.l.s.bad != nil {
		return Holder{}, fail("leader", e.l.s.name, e.l.s.bad)
	}
	info, err := e.l.c.Inspect(ctx, e.l.s.name)
	switch {
	case err != nil:
		return Holder{}, err
	case len(info.Holders) == 0:
		return Holder{}, &Error{Op: "leader", Name: e.l.s.name, Kind: ErrNoLeader}
	}
	return info.Holders[0], nil
}

// Leaders yields what Leader returns, first at once and then after each change: another leader or
// term, none (ErrNoLeader), no answer (ErrUnavailable), an answer again. It ends with ctx, and after
// ErrInvalid, ErrUnsupported or ErrClosed.
//
// It calls Inspect about every tenth of the lock's TTL (3 s by default), though not more often than ten
// times a second, and so misses terms that are shorter. It never takes part in the election.
func (e *Election) Leaders(ctx context.Context) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		period := max(e.l.s.terms.TTL/10, 100*time.Millisecond)
		var last observation
		for first := true; ; first = false {
			h, err := e.Leader(ctx)
			if ctx.Err() != nil {
				return
			}
			if now := observe(h, err); first || now != last {
				last = now
				if !yield(h, err) {
					return
				}
			}
			if driver.Final(err) || wait.Sleep(ctx, wait.Jitter(period)) != nil {
				return
			}
		}
	}
}

// observation identifies a result of Leader, so that a change is noticed.
type observation struct {
	owner string
	fence uint64
	kind  error
}

func observe(h Holder, err error) observation {
	if err != nil {
		return observation{kind: kindOf(err)}
	}
	return observation{owner: h.Owner, fence: h.Fence}
}
