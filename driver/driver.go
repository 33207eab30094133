// Package driver is the one interface between distlock and a coordinator.
//
// A driver makes single attempts and reports facts. Waiting, retrying, renewal,
// jitter, deadlines, queueing inside a process and the shape of errors belong to
// package distlock, so every backend behaves alike and a new one stays small.
//
// Only backends, and combinators that make one backend of several, need this package. All other
// programs use package distlock.
//
// # What the core promises a driver
//
//   - Names are non-empty UTF-8 without NUL. Any such name is valid: a driver
//     whose coordinator is pickier escapes or hashes it, injectively.
//   - Owner is a UUID in its 36 character form (see Owners), fresh for each attempt to hold
//     and never used again after it was released. It is the proof of holding and
//     the idempotency key: a repeated request of an Owner is for the same hold.
//   - No two calls run at once for one Owner. Calls for different Owners, also of
//     one name, do run at once.
//   - TTL lies between Caps.MinTTL and Caps.MaxTTL, and is [MaxTTL] at most; Mode is one of
//     Caps.Modes.
//   - After an unknown outcome the core tries again with the same Owner, or
//     releases that Owner until it is answered or its TTL has passed; with
//     Caps.Session until it is answered or the client is closed. After [ErrSpent]
//     it does not try again with that Owner.
//   - An Owner that tries again requests the same Name, Limit, TTL, Fixed and Meta, and
//     agrees to be asked for the lock or does not, as before. A downgrade changes Mode, and
//     may end that agreement.
//
// # What a driver promises the core
//
// The comments of [Backend] list the promises of each call. The suite in package drivertest
// checks it, and is the specification where the two differ.
//
//   - Answers are facts. A network error is never [ErrLost] and never a
//     [HeldError]; whatever is not one of the errors declared here counts as
//     unknown.
//   - A refusal is no answer. What a coordinator refuses because of who asks, or because it is busy
//     (a login, a right, a quota, a limit of connections), may be given back in a moment: it is an
//     unknown outcome, marked with [ErrUnsent] if nothing was taken, whose text says why. Only an
//     Opener, or the first call of a connection that never worked, answers [ErrInvalid] to it.
//   - Every check of the Owner is atomic with the change that it guards.
//   - Fences of a name strictly increase, also over expiry, restarts and lost
//     counters, and stay below 1<<63.
//   - Times are durations, never instants: clocks of two machines are not
//     compared. Where a coordinator needs a clock it uses its own.
package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"
)

// Backend is a connection to a coordinator. All methods are safe for concurrent use, and return
// when their context ends. Where the coordinator is a local file, Acquire and Release may first wait for a disk that does not answer.
type Backend interface {
	// Caps returns what the backend can do. It is constant over the backend's life.
	Caps() Caps

	// Acquire makes one attempt to make r.Owner hold r.Name. It always calls the coordinator, and
	// never answers from its own memory.
	//
	// A nil error says that r.Owner holds. If it held already, the hold lives for at least r.TTL
	// from now on, and its fences are greater than all that it had before; with Mode Read while it
	// held with Write, the hold was downgraded (see Caps.Downgrade). An attempt never shortens the
	// life of a hold: it may arrive late, after a Renew for longer.
	//
	// A *HeldError says that another Owner holds. With r.Queue a place in the queue stays for r.TTL
	// after this attempt, or as long as the session; if nothing else keeps its owner from holding, it stays for
	// TurnLife. The end of a place may end others of its client behind it (see Owners) TurnLife later, unless these are asked for again.
	// No request passes a place in the queue, not even one without Queue.
	//
	// ErrInvalid, ErrUnsupported and ErrClosed are final: the request can never be granted, and
	// nothing was taken. ErrUnsent means that the attempt was not sent: nothing was taken, and the
	// core does not release Owner because of it. After any other error the outcome is unknown, and
	// the core tries again.
	Acquire(ctx context.Context, r Request) (Grant, error)

	// Renew makes each hold live for at least its TTL from now on, and answers each in a slice with
	// the length of holds. It never shortens a life: a renewal may arrive late, after one for longer.
	// nil: the hold lives for at least TTL, counted from before the call. ErrLost: Owner does not hold,
	// as a fact, and the hold is not revived. Any other error: unknown, and the hold may live on.
	// ErrInvalid and ErrUnsupported are about the TTL or the Floor that was asked for, and say nothing
	// about the hold.
	//
	// The answer for one hold waits for another no longer than the coordinator makes it wait. When
	// ctx ends, a hold without an answer is unknown, and the others keep theirs.
	Renew(ctx context.Context, holds []Hold) []error

	// Release ends Owner's hold, its place in the queue, or a lock that a closed Watch had taken
	// for it. Only Name, Owner and Mode of h are needed. They may come from an Info, which is how a
	// lock is unlocked by force: a successor can't be hit. ErrLost: Owner had nothing when the call began; a
	// call that tries again by itself must not say so of what an earlier try may have ended. ErrUnsent: the release was not
	// sent, or was refused: it has ended nothing and never will. Any other
	// error: unknown. After both the core tries again. ErrInvalid and ErrUnsupported are no answers of a
	// Release, but for a name that the store can't have.
	Release(ctx context.Context, h Hold) error

	// Close ends every goroutine, connection and subscription of the backend. It does not release
	// holds; session backends end the session, which does. Calls after Close return ErrClosed.
	Close() error
}

// Watcher is implemented by a backend whose coordinator can push. Without it the core polls.
type Watcher interface {
	// Watch returns once it is armed: from then on everything that may let r be granted is
	// signalled. ctx bounds the arming only. ErrSkip means: as if this backend had no Watch.
	//
	// A backend that waits natively may take the lock for r.Owner in the meantime, also if it
	// returns an error other than ErrSkip. The next Acquire of that Owner reports it. Such a backend has
	// QueueAlways or Caps.Session, by which combinators know it.
	Watch(ctx context.Context, r Request) (Watch, error)
}

// Watch is one armed wait.
type Watch struct {
	// Ready fires again and again: after everything, except the passing of time, that may let the
	// request be granted, and when that may have been missed. A superfluous signal costs an attempt, a missing one a delay of up to
	// ten seconds if the last refusal was Signaled. It is not closed.
	Ready <-chan struct{}

	// Close ends the watch. After it has returned nothing more is taken. It is called exactly once.
	Close func()
}

// Inspector is implemented by a backend that can report the holders and waiters of a lock.
type Inspector interface {
	// Inspect describes name. An Info without Holders means that it is free.
	Inspect(ctx context.Context, name string) (Info, error)

	// List calls yield for each name with the prefix that is held or waited for,
	// in no order, each once, until yield returns false.
	List(ctx context.Context, prefix string, yield func(name string) bool) error
}

// Revoker is implemented by a backend that can request the release of a lock from its holder.
type Revoker interface {
	// Revoke requests the release from h's Owner, which decides whether to release. nil says that
	// the request is made, or had been made before. h may come from an Info; Name, Owner and Mode
	// are needed. ErrLost: Owner does not hold; it may wait in the queue. ErrUnsupported: h's mode
	// is not in Caps.Revocable, or the holder is not revocable, as far as the coordinator knows.
	Revoke(ctx context.Context, h Hold) error
}

// Hold names one owner's hold on one lock.
type Hold struct {
	Name  string
	Owner string
	Mode  Mode

	// TTL is how long the hold lives without renewal. A driver may round it up,
	// never down.
	TTL time.Duration

	// Floor makes Renew raise the name's fence counter so that the fence of every later grant is
	// greater than Floor; atomically with the check that Owner holds. Zero means no floor. See
	// Caps.Floor.
	Floor uint64

	// Fence is the last fence of the grant; 0: not known. A backend whose grants come before their fences may write it
	// for Inspect when it renews.
	Fence uint64
}

// Request is one attempt to hold.
type Request struct {
	Hold

	// Limit is how many may hold at once; for Counted only. All users of a name
	// must agree on it; a driver answers ErrInvalid while permits are held, or waited for, with another limit.
	Limit int

	// Fixed says that the hold is not going to be renewed, except by an Extend: it ends by itself
	// after TTL. Where holds share the life of a session, which other holds prolong, the core releases
	// it in time.
	Fixed bool

	// Queue keeps a place in the queue when the request is refused. The core sets it for all that
	// wait, where Caps.QueueingOf(Mode) is not Never: one place for each name and process, or for
	// each caller with Fair.
	Queue bool

	// Fences is how many consecutive fences are wanted, for hand-off inside the
	// process; at least 1, and more than 1 only for Exclusive and Write.
	Fences uint64

	// Meta, UTF-8, is stored with the hold for Inspect: host, pid, program, free text. It must not be
	// changed, and the core does not change it.
	Meta map[string]string

	// OnLost, if not nil, is called at most once when the backend learns by itself that the hold is
	// gone: a session that ended, a deleted key. It may be called before Acquire returns, from any
	// goroutine. It does not block. Backends without such signals never call it. Only the OnLost of
	// an Owner's latest grant counts.
	//
	// It is a function and not a channel in Grant, so that ten thousand holds need no ten thousand
	// goroutines to listen.
	OnLost func()

	// OnRevoke, if not nil, makes the hold revocable: it is called at most once, soon after a
	// Revoke for the hold. Otherwise it is like OnLost. It need not be called again for an Owner
	// that was granted again after it. It is set only for the modes of Caps.Revocable.
	OnRevoke func()
}

// Grant is the result of a successful Acquire.
type Grant struct {
	// Fence … Fence+Fences-1 are the fences of this hold. Fences is at least 1 and at most what was
	// requested. After its last fence, a hand-off acquires again.
	Fence, Fences uint64

	// TTL is the life of the hold, counted from before the call. It is at least what was requested,
	// except for sessions that have less left.
	TTL time.Duration
}

// Last returns the greatest fence of the grant.
func (g Grant) Last() uint64 { return g.Fence + g.Fences - 1 }

// Info is the result of Inspect. A free lock has no Holders.
type Info struct {
	Name    string
	Mode    Mode // of the lock's kind as seen: Exclusive, Write, Read or Counted; 0 when free
	Limit   int  // Counted: permits in all
	Holders []Holder
	Waiters []Holder // those in the queue, in its order, as far as the coordinator knows

	// WaiterCount is at least len(Waiters): some coordinators know how many wait
	// and not who. -1: not known.
	WaiterCount int
}

// Holder is one that holds, or waits in the queue.
type Holder struct {
	// Owner identifies the hold. A force unlock names it, so a program that shows an Info to people
	// who may not break locks leaves it out.
	Owner string
	Mode  Mode

	// Fence is the first fence of the grant; within a span that is handed off inside the holder's
	// process, the current one can be greater. 0: not known. Inspect reports it from the grant on, or never.
	Fence uint64

	// Held is how long it has been holding, or waiting in the queue, by the
	// coordinator's clock; negative: not known.
	Held time.Duration

	// Left is how long it holds on if it is not renewed; negative: not known, or
	// without end.
	Left time.Duration

	// Foreign says that the backend does not know the form of what is stored: it is the
	// lock of another library or script, or other data.
	Foreign bool

	Meta map[string]string // as given in Request.Meta
}

// Owners makes the Owners of one client. They have their first OwnersStart characters in common, by
// which a coordinator may address all waiters of the client, and end the places of one that died. Nothing else may depend on
// that.
type Owners struct{ form [36]byte } // the common start, and the hyphens

// OwnersStart is the length of the common start of a client's Owners.
const OwnersStart = 18

// NewOwners returns Owners with a random start.
func NewOwners() Owners {
	var b [8]byte
	random(b[:])
	b[6] = b[6]&0x0f | 0x40
	text := hex.EncodeToString(b[:])
	var o Owners
	copy(o.form[:], text[:8]+"-"+text[8:12]+"-"+text[12:]+"-....-............")
	return o
}

// random fills b. Two clients with one Owner would both hold a lock, so it panics if the system has no random bytes.
func random(b []byte) {
	if _, err := rand.Read(b); err != nil {
		panic(err)
	}
}

// New makes a fresh Owner: a random UUID (RFC 9562, version 4) in its 36 character form. 62 random bits
// are its own, so that a program that knows one Owner of the client can't guess another.
func (o Owners) New() string {
	var b [8]byte
	random(b[:])
	b[0] = b[0]&0x3f | 0x80
	hex.Encode(o.form[19:23], b[0:2])
	hex.Encode(o.form[24:36], b[2:8])
	return string(o.form[:])
}

// NewOwner makes a fresh Owner that has nothing in common with others.
func NewOwner() string { return NewOwners().New() }

// Validate returns an error if a backend with these Caps can never grant r: ErrUnsupported for a mode
// or a queue that it does not have, and ErrInvalid for what no backend takes. A backend calls it at the
// beginning of Acquire, and adds what only it can't do.
func (r *Request) Validate(c Caps) error {
	switch {
	case r.Mode == 0 || !c.Modes.Has(r.Mode):
		return fmt.Errorf("%w: mode %v: want one of: %v", ErrUnsupported, r.Mode, c.Modes)
	case r.Queue && c.QueueingOf(r.Mode) == QueueNever:
		return fmt.Errorf("%w: there is no queue for mode %v", ErrUnsupported, r.Mode)
	case r.Name == "" || r.Owner == "":
		return fmt.Errorf("%w: a request needs a name and an owner", ErrInvalid)
	case r.Mode == Counted && r.Limit < 1:
		return fmt.Errorf("%w: %d permits: want at least 1", ErrInvalid, r.Limit)
	}
	return validateTTL(r.TTL)
}

// ValidateRenewal returns ErrInvalid if no backend takes the TTL or the Floor of h. A backend calls it
// at the beginning of Renew.
func (h *Hold) ValidateRenewal() error {
	if h.Floor >= 1<<63 {
		return fmt.Errorf("%w: floor %d is no fence: want less than 1<<63", ErrInvalid, h.Floor)
	}
	return validateTTL(h.TTL)
}

func validateTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > 2*MaxTTL { // combinators add to what the core asks for
		return fmt.Errorf("%w: TTL %v: want more than 0 and at most %v", ErrInvalid, ttl, MaxTTL)
	}
	return nil
}
