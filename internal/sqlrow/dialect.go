package sqlrow

import (
	"context"
	"crypto/sha256"
	"math"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Key is the primary key of a lock's row: the SHA-256 of its name.
type Key [sha256.Size]byte

// KeyOf returns the key of a name.
func KeyOf(name string) Key { return sha256.Sum256([]byte(name)) }

// Row is the row of one lock. Times are µs since 1970 by the server's clock. A "" or nil here is
// NULL in the table.
type Row struct {
	Key    Key
	Name   string
	Kind   driver.Mode // of the last grant: Exclusive, Write or Counted; Write stands for Read too
	Limit  int         // of the permits that are held or waited for
	Number int64       // of the last grant; it never decreases

	// Owner has an exclusive hold, in the mode that is the row's kind, until Until. A hold that has
	// ended stays in the row until the next one replaces it.
	Owner        string
	Granted      int64  // the Number of the Owner's grant
	Since, Until int64  // 0 without an Owner, as Granted
	Meta         []byte // JSON, as the Owner gave it
	Address      string // Notifier.Address of the Owner's backend

	Claims  []byte // everything else: readers, permits, places in the queue
	Claimed int64  // when the last of Claims ends; 0 if there are none

	Rev     int64 // raised by every change except to Waiting; 0: there is no row
	Waiting int64 // until when waiters want to be notified of a release; 0: there are none

	// Insert and Swap write the row only from Earliest to Latest, by the clock of their own
	// statement. The two are not in the table.
	Earliest, Latest int64
}

// TakeRequest is an attempt.
type TakeRequest struct {
	Name    string
	Mode    driver.Mode
	Limit   int // permits of a semaphore; otherwise 0
	Owner   string
	TTL     time.Duration // in whole µs
	Meta    []byte
	Address string

	// Queue takes a place if the attempt is refused, for PlaceLife.
	Queue     bool
	PlaceLife time.Duration // in whole µs
}

// Taken is the outcome of a Contend.
type Taken struct {
	Number int64 // of the grant; 0: there is none
	Placed bool  // the owner has a new place in the queue

	// Now and Row are the clock and the row that has the new place, if the dialect knows them without another statement.
	Now int64
	Row Row
}

// Rewriting changes one of a row's Claims.
type Rewriting struct {
	Key      Key
	Old, New []byte // the claim's text in Claims
	Until    int64  // the new one's
	Number   int64  // the row's number is raised to this

	// Rewrite writes the row only from Earliest to Latest, by the clock of its own statement.
	Earliest, Latest int64
}

// HoldKey identifies a hold in a row.
type HoldKey struct{ Name, Owner string }

// Extension has the terms of a renewal.
type Extension struct {
	TTL   time.Duration // in whole µs
	Floor int64         // the number is raised to this
	Wait  bool          // wait up to a second for a locked row; with one hold only
}

// Dialect has the statements of one database. Each method runs one statement that commits by itself,
// never a transaction that stays open while a client thinks. A dialect may retry a statement that
// the database has undone (a deadlock, a serialization failure), but not one that may have taken
// effect.
//
// "now" is the clock of the server that runs the statement, when it starts. Two statements may have
// different clocks. An error is one of package driver, or means an unknown outcome.
//
// If a transaction of another program has locked a row, Extend (unless it is to wait) and Swap leave
// it out, as if it had changed. Take, Contend, Free, Drop, Rewrite, Insert and Mark may wait for the row, for a second or
// two at most where the database has such a limit.
//
// Methods are safe for concurrent use, and return when ctx ends.
type Dialect interface {
	// Take makes t.Owner hold alone, if there is a row without living claims (Claimed <= now)
	// whose Number is below MaxNumber, and which is free (Until <= now) or held by t.Owner
	// in the same kind:
	//
	//	number = granted = greatest(number+1, now), owner, until = greatest(until, now+TTL),
	//	meta, address, kind, lim = 0, claims = NULL, claimed = 0, rev = rev+1, and since = now
	//	unless t.Owner holds already.
	//
	// It returns the new Number, or 0 if nothing was changed.
	Take(ctx context.Context, t TakeRequest) (number int64, err error)

	// Contend is Take in any mode and among others, if there is a row whose Number is below MaxNumber. It treats claims that
	// have ended as living, as long as others in the row live (Claimed > now); the kind and limit of a row with claims must be
	// the request's. What it can't decide by the text of Claims it leaves alone: then Number is 0 and Placed false.
	//
	// An exclusive hold (of Exclusive or Write) needs Until <= now and no claim before t.Owner's place, or no claims; or
	// t.Owner holds already in the same kind, and then the claims stay:
	//
	//	number = granted = greatest(number+1, now), owner, until = greatest(until, now+TTL),
	//	meta, address, kind, lim = Limit, rev = rev+1, claims without the place, and since = now
	//	unless t.Owner holds already.
	//
	// A reader needs Until <= now and no place of a writer before it, a permit less than Limit claims before it. The hold
	// replaces the place, or is added to Claims.
	//
	// If others hold, or claims block the owner, and t.Queue is set, an owner without a claim gets a place at the end of
	// Claims, whose number is the row's new rev: greater than all that came before.
	Contend(ctx context.Context, t TakeRequest) (Taken, error)

	// Free ends h if it is an exclusive hold that has not ended (Until > now): owner, meta and
	// address become NULL, granted, since and until 0, rev = rev+1. Claims stay.
	//
	// waited means that Waiting > now. A dialect that can notify waiters in the same statement does
	// so. contended is a guess at waited: where the statement that notifies is the dearer one, another may come first.
	Free(ctx context.Context, h HoldKey, contended bool) (freed, waited bool, err error)

	// Drop removes h's claim from Claims, if it has not ended: a shared hold or a place. waited means the same as for Free.
	Drop(ctx context.Context, h HoldKey) (dropped, waited bool, err error)

	// Extend renews the exclusive holds that have not ended and whose rows are not locked:
	//
	//	until = greatest(until, now+TTL),
	//	number = greatest(number, Floor), rev = rev+1, and the address of now.
	//
	// It returns the number of renewed holds and now+TTL, or 0 if there are none. A row that already had
	// these values need not count. There are at most MaxExtend holds, each of another row.
	Extend(ctx context.Context, holds []HoldKey, e Extension) (n int, until int64, err error)

	// Rewrite replaces Old by New if Claims has that, w.Earliest <= now <= w.Latest, and Claimed > now:
	//
	//	claims, claimed = greatest(claimed, Until), number = greatest(number, Number), rev = rev+1.
	Rewrite(ctx context.Context, w Rewriting) (done bool, err error)

	// Read reads the rows of names, at most MaxExtend. now is the clock of the same statement. A row that changes
	// meanwhile is read as it was before or after. Names without a row are left out; of several names others may be left
	// out too, so only a Read of one name says that it has no row. Then the clock was answered: if it is 0, nothing was.
	Read(ctx context.Context, names []string) (now int64, rows []Row, err error)

	// Insert adds a row with Rev 1 if r.Earliest <= now <= r.Latest. done is false, without an
	// error, at another time or if there is a row already.
	Insert(ctx context.Context, r Row) (done bool, err error)

	// Swap writes all of r but its Key, Name and Waiting if the row's rev is r.Rev and r.Earliest <=
	// now <= r.Latest, and raises rev. If frees is true, the change may unblock waiters; waited
	// means the same as for Free, and waiters are notified as by Free.
	Swap(ctx context.Context, r Row, frees bool) (done, waited bool, err error)

	// Mark marks the row, if there is one, as waited for: waiting = greatest(waiting, now+d). Rev
	// stays.
	Mark(ctx context.Context, k Key, d time.Duration) error

	// Names returns up to limit names with a claim that lasts (Until > now or Claimed > now), in a
	// fixed order, after the name after ("": from the first one). Names with the prefix come first;
	// others may be left out.
	Names(ctx context.Context, prefix, after string, limit int) ([]string, error)
}

// MaxExtend is how many rows one statement changes. They are locked for some ms.
const MaxExtend = 256

// MaxNumber is the greatest number of a grant: its fence stays below 1<<63.
const MaxNumber = claims.MaxNumber

// The limits of a row. A database that is not strict would cut off longer values.
const (
	MaxOwner = 64        // bytes
	MaxName  = 1<<16 - 1 // bytes
	MaxText  = 1<<24 - 1 // bytes of Meta, and of Claims
	MaxLimit = math.MaxInt32
)

// Notifier notifies waiters in other processes of a release. A notification that is lost costs only
// a delay: the rows decide, and are read from time to time.
type Notifier interface {
	// Address returns the text that a row stores with a hold or waiter of this backend, so that
	// others can wait for its notifications; "" if there is none. The text stays valid for life, which is a
	// hold's TTL, and 0 for an attempt or a place in the queue, which asks again soon. Address does not
	// block. It may start work that improves later answers.
	Address(life time.Duration) string

	// Notify is called after a change that may unblock waiters, of a row that is marked as waited
	// for. It does not block.
	Notify(k Key)

	// Listen returns a listener for one lock. It does not block.
	Listen(k Key) Listener

	// Close ends goroutines and connections, after all listeners are closed. Later calls of Address
	// and Notify do nothing.
	Close() error
}

// Listener waits for notifications about one lock. Its methods are called one after the other.
type Listener interface {
	// Arm prepares to wait. It is called each time before the row is marked and read, and returns
	// when no later notification is missed. After an error the row is polled for a while.
	Arm(ctx context.Context) error

	// Wait waits for the next notification from address, or until ctx ends. address belongs to the claim
	// ahead, as the row had it after Arm; "" if it has none. silent means that no notification can
	// arrive, so the row is polled. A Notifier that calls Backend.Wake waits until ctx ends.
	Wait(ctx context.Context, address string) (notified, silent bool)

	// Close ends the listener.
	Close()
}
