package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/wait"
)

// yieldPause is how long a run pauses after it gave up a lock that another client requested.
const yieldPause = time.Second

// otherKindPause is the pause between attempts on a name that is in use as another kind of lock, where kinds of lock have no
// common queue: no server signals the end of that.
const otherKindPause = 100 * time.Millisecond

// answerTimeout is how long a server may take to answer before it counts as unavailable.
const answerTimeout = time.Second

// acquirer acquires the locks of one run.
type acquirer struct {
	o      *runOptions
	began  time.Time
	client *distlock.Client
	locks  *distlock.MultiLock
	asked  wait.Signal // notified when another user asks for a lock
	notice *notice
	warnf  func(format string, args ...any) // never blocks
	flush  func()
}

func (a *app) newAcquirer(ctx context.Context, o *runOptions) (*acquirer, error) {
	began := time.Now()
	n := newNotice(a.err, o.quiet, func(s string) string { return scrub(s, a.secrets) })
	n.fresh += o.ttl
	if o.verb == "elect" {
		n.next = time.Hour // that another process leads for long is no news
	}
	b, err := a.openWithin(ctx, o, n, began)
	if err != nil {
		return nil, err
	}
	if err := o.checkBackend(a.location, b.Caps()); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	c, err := newClient(b, o.clientOptions(n.observer()))
	if err != nil {
		return nil, err
	}
	n.client = c
	t := &acquirer{o: o, began: began, client: c, asked: wait.NewSignal(), notice: n}
	t.locks = distlock.Multi(o.lockers(c, t.asked)...)
	t.warnf, t.flush = a.background()
	return t, nil
}

// openWithin connects to the server. With --wait it retries until that time is over, as for a server
// that goes away later.
func (a *app) openWithin(ctx context.Context, o *runOptions, n *notice, began time.Time) (driver.Backend, error) {
	first, cancelFirst := context.WithDeadline(ctx, began.Add(min(o.answerTime(), openTimeout)))
	b, err := a.openBackend(first)
	cancelFirst()
	if err == nil || !o.waitSet || o.noWait {
		return b, err
	}
	ctx, cancel := context.WithDeadline(ctx, began.Add(o.wait))
	defer cancel()
	defer n.start(ctx, err)()
	for errors.Is(err, distlock.ErrUnavailable) && wait.Sleep(ctx, wait.Jitter(otherKindPause)) == nil {
		b, again := openBy(ctx, driver.Open, a.location)
		if again == nil {
			return b, nil
		}
		if !errors.Is(again, distlock.ErrUnavailable) {
			err = again // else the first error says more: the server was asked what it is
		}
	}
	return nil, cmp.Or(caughtBy(ctx), err)
}

// answerTime returns how long the server may take to be reached and to answer the first attempt, by how long the user is willing to wait.
func (o *runOptions) answerTime() time.Duration {
	switch {
	case o.noWait:
		return 2 * answerTimeout // a store that is far away takes several requests
	case o.waitSet:
		return max(o.wait, answerTimeout)
	}
	return forever
}

// acquire makes one attempt, and waits if that is refused and waiting is wanted. So one attempt is made, however short the wait is.
func (a *acquirer) acquire(ctx context.Context) (*distlock.MultiLease, error) {
	began := time.Now()
	first, cancelFirst := context.WithTimeout(ctx, a.o.answerTime()-began.Sub(a.began))
	lease, refused := a.attempt(first, a.locks.TryLock)
	cancelFirst()
	if lease != nil || a.o.noWait || !a.transient(refused) {
		return lease, a.explain(refused, 0)
	}
	if err := a.selfHeld(ctx); err != nil {
		return nil, err
	}
	if a.o.waitSet {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, a.began.Add(a.o.wait))
		defer cancel()
	}
	defer a.notice.start(ctx, nil)()
	lease, err := a.wait(ctx, refused)
	return lease, a.explain(err, time.Since(began))
}

// wait waits until the locks are held or ctx ends. It retries after transient errors: if one of
// several locks was lost during the wait for the next, or if a name is in use as another kind of lock.
func (a *acquirer) wait(ctx context.Context, refused error) (*distlock.MultiLease, error) {
	for {
		asked, pause := time.Now(), wait.Jitter(otherKindPause)
		lease, wanted, err := a.lock(ctx)
		switch {
		case lease != nil:
			return lease, nil
		case wanted:
			pause = yieldPause
		case errors.Is(err, distlock.ErrHeld):
			refused = err
		case errors.Is(err, distlock.ErrUnavailable) && time.Since(asked) > answerTimeout:
			refused = err // not the end of ctx, which says nothing about the server
		case ctx.Err() == nil && !a.transient(err):
			return nil, err
		}
		if wait.Sleep(ctx, pause) != nil {
			return nil, a.confirm(ctx, refused)
		}
	}
}

// lock waits until the locks are held. If it holds some of them and one is revoked, it releases
// them and returns wanted.
func (a *acquirer) lock(ctx context.Context) (lease *distlock.MultiLease, wanted bool, err error) {
	select {
	case <-a.asked: // about an earlier attempt
	default:
	}
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-a.asked:
			wanted = true
			giveUp()
		case <-stop:
		}
	}()
	lease, err = a.attempt(ctx, a.locks.Lock)
	close(stop)
	<-stopped
	if lease != nil && wanted {
		a.asked.Notify() // the command has to stop now
	}
	return lease, wanted, err
}

// selfHeld returns an error if an outer distlock holds the lock: this one would wait for the end
// of its own command.
func (a *acquirer) selfHeld(ctx context.Context) error {
	owners := strings.Split(os.Getenv("DISTLOCK_OWNER"), "\n")
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for _, name := range a.o.names {
		if !slices.Contains(strings.Split(os.Getenv("DISTLOCK_NAME"), "\n"), name) {
			continue
		}
		info, err := a.client.Inspect(ctx, name)
		if err != nil {
			continue
		}
		ours := slices.DeleteFunc(info.Holders, func(h distlock.Holder) bool { return !slices.Contains(owners, h.Owner) })
		enough := 1
		if mode := distlock.Counted; info.Mode == mode && a.o.mode() == mode {
			enough = info.Limit // others may release the other permits
		}
		if len(ours) >= max(enough, 1) {
			return usage("%s: lock %s is held by an outer distlock, so this one would wait forever; remove the inner one, or give it another name", a.o.verb, quoted(name))
		}
	}
	return nil
}

// confirm returns refused, or the server's error if it has become unavailable since.
func (a *acquirer) confirm(waited context.Context, refused error) error {
	if caughtBy(waited) != nil || !errors.Is(refused, distlock.ErrHeld) {
		return refused
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout/2)
	defer cancel()
	if _, err := a.client.Inspect(ctx, a.o.names[0]); errors.Is(err, distlock.ErrUnavailable) || ctx.Err() != nil {
		return cmp.Or(err, refused)
	}
	return refused
}

// attempt calls lock. If a name is in use as another kind of lock it returns ErrHeld in place of
// ErrInvalid: that passes, too. It calls lock again if the other kind has ended.
func (a *acquirer) attempt(ctx context.Context, lock func(context.Context) (*distlock.MultiLease, error)) (*distlock.MultiLease, error) {
	const tries = 3 // of a request that no server ever takes
	for n := 1; ; n++ {
		lease, err := lock(ctx)
		if !errors.Is(err, distlock.ErrInvalid) {
			return lease, err
		}
		if held := a.otherKind(); held != nil {
			return nil, held
		}
		if n == tries {
			return nil, err
		}
	}
}

// otherKind returns ErrHeld if one of the names is in use as another kind of lock, and not as this one too: then the
// refusal has another reason.
func (a *acquirer) otherKind() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	for _, name := range a.o.names {
		info, err := a.client.Inspect(ctx, name)
		if err != nil {
			continue
		}
		held := &distlock.HeldError{Holders: slices.Concat(info.Holders, info.Waiters)}
		ours := false
		for i, h := range held.Holders {
			mode := h.Mode
			if i < len(info.Holders) {
				mode = info.Mode // known of another library's holder, too
			}
			ours = ours || mode.SameKind(a.o.mode())
			held.Retry = max(held.Retry, h.Left)
		}
		if len(held.Holders) > 0 && !ours {
			return &distlock.Error{Op: "lock", Name: name, Kind: distlock.ErrHeld, Err: held}
		}
	}
	return nil
}

// transient reports whether waiting may help.
func (a *acquirer) transient(err error) bool {
	return errors.Is(err, distlock.ErrHeld) || errors.Is(err, distlock.ErrUnavailable) || errors.Is(err, distlock.ErrLost)
}

// explain adds the lock's name and the time of the wait to a refusal.
func (a *acquirer) explain(err error, waited time.Duration) error {
	var held *distlock.HeldError
	switch {
	case errors.Is(err, distlock.ErrUnavailable):
		return fmt.Errorf("%w; gave up after %v", err, time.Since(a.began).Round(time.Millisecond))
	case !errors.As(err, &held):
		return err
	}
	if !a.client.Caps().Ends() {
		return fmt.Errorf("%w; %w", explain(err, held, waited), errWatched)
	}
	return explain(err, held, waited)
}

func explain(err error, held *distlock.HeldError, waited time.Duration) error {
	what := "the lock"
	if e := (*distlock.Error)(nil); errors.As(err, &e) && e.Name != "" {
		what = "lock " + quoted(e.Name)
	}
	if waited > 0 {
		return fmt.Errorf("%s is %w; gave up after %v", what, held, waited.Round(time.Millisecond))
	}
	return fmt.Errorf("%s is %w", what, held)
}
