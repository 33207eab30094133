package sqlrow

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/claims"
)

// Key is the primary key of a lock's row: the SHA-256 of its name.
type Key [sha256.Size]byte

// KeyOf is the key of a name.
func KeyOf(name string) Key { return sha256.Sum256([]byte(name)) }

// Row is what the table knows of one lock. Times are µs since 1970 by the server's clock.
// What is "" or nil here is NULL in the table.
type Row struct {
	Key    Key
	Name   string
	Kind   driver.Mode // Exclusive, Write or Counted; Write stands for Read too
	Limit  int         // of a semaphore
	Number int64       // of the last grant; it never decreases

	// Owner holds alone, in the mode that is the row's kind, until Until. A hold whose time
	// is over stays in the row until the next takes its place.
	Owner        string
	Granted      int64  // the Number of the Owner's grant
	Since, Until int64  // 0 without an Owner, as Granted
	Meta         []byte // JSON, as the Owner gave it
	Address      string // Bell.Tag of the Owner's backend

	Claims  []byte // everything else: readers, permits, places in line
	Claimed int64  // when the last of Claims ends; 0 without

	Rev     int64 // raised by every change but that of Waiting; 0: there is no row
	Waiting int64 // until when somebody listens for a release; 0: nobody

	// Insert and Swap write the row only between these two times, both included, by the
	// clock of their own statement. They are not in the table.
	Earliest, Latest int64
}

// TakeRequest is a wish to hold alone.
type TakeRequest struct {
	Name    string
	Kind    driver.Mode // Exclusive or Write
	Owner   string
	TTL     time.Duration // in whole µs
	Meta    []byte
	Address string
}

// HoldKey names a hold in a row.
type HoldKey struct {
	Key   Key
	Owner string
}

// Extension is what a renewal asks for.
type Extension struct {
	TTL     time.Duration // in whole µs
	Floor   int64         // the number is raised to this
	Shorten bool          // the hold ends after TTL also if more is left
	Wait    bool          // for the row, if it is locked, for a second at most; of one hold only
}

// Dialect is the table in the words of one database. Each method is one statement, on its
// own: never a transaction that stays open while a client thinks. What the database did not
// do for a reason that passes (a deadlock, a serialization failure) a dialect may ask again;
// what may have been done it must not.
//
// "now" is the clock of the server that runs the statement, as it starts. Two statements may
// have different clocks. An error is a fact of package driver or unknown.
//
// A row that is locked by a transaction of another program is left out by Extend, unless that is
// to wait, and Swap, as if it had changed. Take, Free, Insert and Mark may wait for it, for a second or two at most
// where the database has such a bound.
//
// Methods are safe for concurrent use, and return when ctx ends.
type Dialect interface {
	// Take makes t.Owner hold alone, if there is a row without living claims (Claimed <= now)
	// whose Number is below MaxNumber, and which is free (Until <= now) or held by t.Owner
	// in the same kind:
	//
	//	number = granted = greatest(number+1, now), owner, until = greatest(until, now+TTL),
	//	meta, bell, kind, lim = 0, claims = NULL, claimed = 0, rev = rev+1, and since = now
	//	unless t.Owner holds already.
	//
	// It answers the new Number; 0: nothing was changed.
	Take(ctx context.Context, t TakeRequest) (number int64, err error)

	// Free ends h if it holds alone and its time is not over (Until > now): owner, meta and
	// bell become NULL, granted, since and until 0, rev = rev+1. Claims stay.
	//
	// waited says that Waiting > now. A dialect that can tell those who wait in the same
	// statement does so.
	Free(ctx context.Context, h HoldKey) (freed, waited bool, err error)

	// Extend renews those holds that hold alone, whose time is not over and whose rows are
	// not locked:
	//
	//	until = greatest(until, now+TTL), or now+TTL with Shorten,
	//	number = greatest(number, Floor), rev = rev+1, and bell of now.
	//
	// It answers how many there were, and now+TTL, which means nothing if there were none.
	// There are at most MaxExtend of them, each of another row.
	Extend(ctx context.Context, holds []HoldKey, e Extension) (n int, until int64, err error)

	// Look reads rows, at most MaxExtend. Keys without a row are left out. now is that of the
	// same statement; a row that changes at the time is seen as before or after, not between.
	Look(ctx context.Context, keys []Key) (now int64, rows []Row, err error)

	// Insert makes a row, with Rev 1, as it is, if r.Earliest <= now <= r.Latest. done is
	// false if it is not that time or there is a row already; that is no error.
	Insert(ctx context.Context, r Row) (done bool, err error)

	// Swap writes all of r but its Key, Name and Waiting if the row's rev is r.Rev and
	// r.Earliest <= now <= r.Latest, and raises rev. If frees is true the change may let
	// others in: waited, and who is told, are as with Free.
	Swap(ctx context.Context, r Row, frees bool) (done, waited bool, err error)

	// Mark says in the row, if there is one, that somebody listens for the time d from now
	// on: waiting = greatest(waiting, now+d). Rev stays.
	Mark(ctx context.Context, k Key, d time.Duration) error

	// Names lists up to limit names with a claim that lives (Until > now or Claimed > now),
	// in an order that stays the same, those that come behind after ("": from the first). All
	// that have the prefix come before any that has not; the latter may be left out.
	Names(ctx context.Context, prefix, after string, limit int) ([]string, error)
}

// MaxExtend is how many rows one statement changes: they are locked for some ms.
const MaxExtend = 256

// MaxNumber is the greatest number of a grant: its fence stays below 1<<63.
const MaxNumber = claims.MaxNumber

// Notifier lets a release be heard by waiters in other processes. What a bell fails to tell
// costs a delay only: the row is the truth, and is looked at from time to time.
type Notifier interface {
	// Address is what a row is to say of a hold or place in line of this backend, so that
	// others find its bell; "" if nothing. It does not block; it may start what makes the
	// next answer better.
	Address(k Key) string

	// Notify is called after a change that may let others in, to a row that said that somebody
	// listens. It does not block.
	Notify(k Key)

	// Listen makes an ear for one lock. It does not block.
	Listen(k Key) Listener

	// Close ends goroutines and connections. It is called when all ears are closed. Tag and
	// Ring may be called later, and do nothing then.
	Close() error
}

// Listener listens for one lock. Its methods are called one after the other.
type Listener interface {
	// Arm readies what is needed to hear. It is called each time before the row is marked and
	// looked at, and returns when nothing that is told after that is missed. After an error the row
	// is polled for a while.
	Arm(ctx context.Context) error

	// Wait blocks until the bell of the tag has rung since it was last heard, true, or until
	// ctx ends, false. tag is that of whoever is in the way, as the row had it after Arm; "" if it
	// has none. silent says that there is nothing to hear, or no means to: poll.
	// A bell that calls Backend.Wake instead waits for the end of ctx.
	Wait(ctx context.Context, tag string) (rang, silent bool)

	// Close ends the ear.
	Close()
}
