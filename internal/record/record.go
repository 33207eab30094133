package record

import (
	"context"
	"errors"
	"time"
)

// Store keeps one record for each name. All methods are safe for concurrent use.
//
// driver.ErrInvalid, driver.ErrUnsupported and driver.ErrUnsent mean what they mean in an Acquire: nothing was written,
// nor will be. ErrRefused means that only if the request was not sent twice on its way. Any error that is none of these nor
// ErrConflict is no answer.
type Store interface {
	// Read returns the record as it is, not as it was. A name without one gives a Record without a Version. Where records
	// may be deleted and fences are counted, its Counter is a number that no earlier fence was above, such as the store's
	// clock in microseconds.
	Read(ctx context.Context, name string) (Record, error)

	// Write replaces the record that has r.Version, or creates one if that is empty. It keeps all fields of r but
	// Version and Stamp, and may round TTL up. ErrConflict: there is a record of another version, or none.
	Write(ctx context.Context, name string, r Record) (Written, error)

	// List calls yield for each record whose name has the prefix, also for free ones, until yield returns false. The
	// Record needs no Version.
	List(ctx context.Context, prefix string, yield func(name string, r Record) bool) error

	Close() error
}

// Watcher is a Store that can push.
type Watcher interface {
	// Watch calls changed with the record as it is, and from then on with each one that replaces it, until stop is called.
	// A Record without a Version says that there may be none, or that some were missed. ctx bounds the arming only.
	Watch(ctx context.Context, name string, changed func(Record)) (stop func(), err error)
}

// ErrConflict says that the record is not of the version that a Write named.
var ErrConflict = errors.New("the record has another version")

// ErrRefused says that the store does not do what was asked, because of who asks or for what.
var ErrRefused = errors.New("refused")

// Refused marks err with ErrRefused, and leaves its text.
func Refused(err error) error { return refused{err} }

type refused struct{ error }

func (r refused) Unwrap() error        { return r.error }
func (r refused) Is(target error) bool { return target == ErrRefused }

// Record is one lock.
type Record struct {
	// Version names what was read: an ETag, a resourceVersion. It never comes back: each Write has another Token, so
	// a hash of the content will do.
	Version string

	// Stamp is a number that the store gives each write, greater than those of all earlier ones; the fence of a grant.
	// 0: the store has none, and fences are counted in Counter.
	Stamp uint64

	Token   string            // of the write that made this version
	Holder  string            // Owner of the holder; empty: free
	Foreign bool              // Holder is no Owner: another program wrote the record. Not written.
	TTL     time.Duration     // of the hold; 0 of another program's: it has no end
	Fence   uint64            // of the hold; 0: not known
	Counter uint64            // fences granted so far, or grants where there are Stamps
	Meta    map[string]string // of the hold

	// Age is how old the version is at least, by the store's own clock. Time in which clocks of the store's hosts may be apart is
	// taken off. 0: not known. Not written.
	Age time.Duration

	// Rest is what the store wants back in the Write that replaces this version.
	Rest any
}

// Written is the answer to a Write.
type Written struct {
	Version string
	Stamp   uint64
	Rest    any
}
