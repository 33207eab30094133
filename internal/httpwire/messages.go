// Package httpwire has the messages that a distlock server and its clients exchange: JSON over HTTP, and
// server-sent events. The server's openapi.json describes them for clients in other languages.
//
// Requests and answers carry durations in milliseconds, never instants. A TTL is rounded up on its way to
// the server, and down on its way back. Fences are decimal strings: JSON numbers of JavaScript have 53 bits.
package httpwire

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// Kind says what an answer states as a fact. Every other answer, and every one without a Kind, means that
// the outcome is unknown: a proxy's own 404 or 410 never becomes a fact about a lock.
type Kind string

// The kinds. OK is an outcome of renewals only.
const (
	OK          Kind = "ok"
	Unknown     Kind = "unknown"
	Held        Kind = "held"
	Lost        Kind = "lost"
	Invalid     Kind = "invalid"
	Unsupported Kind = "unsupported"
	Denied      Kind = "denied"
	Unsent      Kind = "unsent" // nothing was taken, and a retry elsewhere may help
)

// Headers.
const (
	// BackendHeader is the backend's name, escaped as a path segment. A server sends it with every
	// answer to a request that it has let in, which marks the answer as a server's and not a proxy's. A
	// client sends the name that it has seen first, and a server before another backend refuses that.
	BackendHeader = "Distlock-Backend"

	// RequestHeader is a random text that a client makes for each request, and that the answer repeats. An
	// answer without it is a proxy's, or that to another request which a proxy has mixed up.
	RequestHeader = "Distlock-Request"

	// ClientHeader is a client's secret, under which it gets the news of its holds.
	ClientHeader = "Distlock-Client"

	// OwnerHeader and FenceHeader carry the Owner and the fence of a hold in the calls that have no body.
	OwnerHeader = "Distlock-Owner"
	FenceHeader = "Distlock-Fence"
)

// Limits of what a server takes.
const (
	MaxBody     = 64 << 10         // bytes of a request, except for renewals
	MaxRenewal  = 2 << 20          // bytes of a renewal
	MaxHolds    = 1000             // in one renewal
	MaxCalls    = 1024             // at once over one connection of calls
	MaxName     = 2048             // bytes of a lock's name
	MaxMeta     = 4 << 10          // bytes of the keys and values of a hold's meta
	MaxWait     = 60 * time.Second // for which one acquire waits
	SecretBytes = 16               // at least, of ClientHeader, in hex
)

// Hello is the answer to GET /v1.
type Hello struct {
	Version string `json:"version"` // of the server
	Backend string `json:"backend"` // its name, without credentials
	Caps    Caps   `json:"caps"`
	Limits  Limits `json:"limits"`
}

// Limits are the limits of a server.
type Limits struct {
	Body    int   `json:"body_bytes"`
	Name    int   `json:"name_bytes"`
	Meta    int   `json:"meta_bytes"`
	Renewal int   `json:"holds_per_renewal"`
	Calls   int   `json:"calls_at_once,omitempty"` // 0: GET /v1/calls is not supported
	Wait    int64 `json:"wait_ms"`
}

// Caps is driver.Caps without its name.
type Caps struct {
	Modes       []driver.Mode `json:"modes"`
	Fence       bool          `json:"fence"`
	Floor       bool          `json:"floor"`
	Downgrade   bool          `json:"downgrade"`
	Observed    bool          `json:"observed,omitempty"`
	Late        int64         `json:"late_ms,omitempty"`
	Queueing    string        `json:"queueing"`               // never, on request or always
	QueuedModes []driver.Mode `json:"queued_modes,omitempty"` // empty: all of Modes
	Revocable   []driver.Mode `json:"revocable,omitempty"`
	MinTTL      int64         `json:"min_ttl_ms,omitempty"`
	MaxTTL      int64         `json:"max_ttl_ms,omitempty"`
	Poll        int64         `json:"poll_ms,omitempty"`
	Watch       bool          `json:"watch"`   // POST /v1/watch is supported
	Inspect     bool          `json:"inspect"` // GET /v1/locks is supported
}

// Hold is driver.Hold.
type Hold struct {
	Name  string      `json:"name"`
	Owner string      `json:"owner"`
	Mode  driver.Mode `json:"mode,omitempty"` // exclusive if absent
	TTL   int64       `json:"ttl_ms,omitempty"`
	Floor uint64      `json:"floor,string,omitempty"`
	Fence uint64      `json:"fence,string,omitempty"`
}

// Request is driver.Request, for POST /v1/acquire and /v1/watch.
type Request struct {
	Hold
	Limit  int               `json:"limit,omitempty"`
	Fixed  bool              `json:"fixed,omitempty"`
	Queue  bool              `json:"queue,omitempty"`
	Fences uint64            `json:"fences,string,omitempty"` // 1 if absent
	Meta   map[string]string `json:"meta,omitempty"`

	// Revocable wants the news that the lock was asked for. It needs ClientHeader.
	Revocable bool `json:"revocable,omitempty"`

	// MinHold is for how long the client lets the hold live at least, also if its process ends before.
	MinHold int64 `json:"min_hold_ms,omitempty"`

	// Wait is for how long a refused acquire waits for the lock, in the queue if there is one.
	Wait int64 `json:"wait_ms,omitempty"`
}

// Grant is the answer to a successful acquire.
type Grant struct {
	Fence  uint64 `json:"fence,string"`
	Fences uint64 `json:"fences,string"`

	// TTL is the life of the hold, counted from Waited after the client sent its request.
	TTL int64 `json:"ttl_ms"`

	// Waited is how long after the arrival of the request the backend was called that granted it.
	Waited int64 `json:"waited_ms"`
}

// Renewal is the body of POST /v1/renew.
type Renewal struct {
	Holds []Hold `json:"holds"`
}

// Renewed is a line of the answer to POST /v1/renew: what became of Holds[Index].
type Renewed struct {
	Index   int    `json:"index"`
	Outcome Kind   `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// CallsProtocol is what GET /v1/calls upgrades a connection to: each line of the client is a Call, and each line of the
// server a Called.
const CallsProtocol = "distlock-calls"

// Call is an acquire or a release, or the news that nobody waits any more for the answer to an earlier one.
type Call struct {
	Index   uint64   `json:"index"` // from 1 on
	Acquire *Request `json:"acquire,omitempty"`
	Release *Hold    `json:"release,omitempty"`
	Leave   bool     `json:"leave,omitempty"`
}

// Called is what became of a call. With the index 0 it is about the connection, which gets no more calls.
type Called struct {
	Index   uint64   `json:"index"`
	Outcome Kind     `json:"outcome"`
	Grant   *Grant   `json:"grant,omitempty"`   // of an acquire that is ok
	Problem *Problem `json:"problem,omitempty"` // if the outcome is not ok
}

// Holder is driver.Holder. Unknown fields are absent. Owner is absent for clients without the right to
// break the lock.
type Holder struct {
	Owner   string            `json:"owner,omitempty"`
	Mode    driver.Mode       `json:"mode,omitempty"`
	Fence   uint64            `json:"fence,string,omitempty"`
	Held    *int64            `json:"held_ms,omitempty"`
	Left    *int64            `json:"left_ms,omitempty"`
	Foreign bool              `json:"foreign,omitempty"`
	Meta    map[string]string `json:"meta,omitempty"`
}

// Info is driver.Info.
type Info struct {
	Name        string      `json:"name"`
	Mode        driver.Mode `json:"mode,omitempty"`
	Limit       int         `json:"limit,omitempty"`
	Holders     []Holder    `json:"holders"`
	Waiters     []Holder    `json:"waiters"`
	WaiterCount *int        `json:"waiter_count,omitempty"`
}

// Names is the answer to GET /v1/locks.
type Names struct {
	Names []string `json:"names"`
	Next  string   `json:"next,omitempty"` // the value of after for the next page; absent on the last
}

// Ask is the body of POST /v1/locks/{name}/ask and /break. It names the hold by its fence or by its owner, so
// that a successor can't be hit.
type Ask struct {
	Fence uint64      `json:"fence,string,omitempty"`
	Owner string      `json:"owner,omitempty"`
	Mode  driver.Mode `json:"mode,omitempty"`
}

// News is the data of an event of GET /v1/news: the client's hold is lost, or was asked for.
type News struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
}

// Names of events.
const (
	EventHello = "hello" // first of every stream
	EventArmed = "armed" // the watch is armed
	EventReady = "ready" // an attempt may succeed now
	EventLost  = "lost"
	EventAsked = "asked"
)

// ProblemType is the content type of errors (RFC 9457).
const ProblemType = "application/problem+json"

// Problem is the body of an error.
type Problem struct {
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Kind     Kind     `json:"distlock"`
	Retry    int64    `json:"retry_ms,omitempty"` // held: when the passing of time alone may help
	Holders  []Holder `json:"holders,omitempty"`
	Signaled bool     `json:"signaled,omitempty"` // held: the owner's stream of POST /v1/watch tells of all else that may help
	Spent    bool     `json:"spent,omitempty"`    // the attempt has released its owner: another one needs a fresh owner
}

// status are the status codes of the kinds.
var status = map[Kind]int{
	Held: http.StatusLocked, Lost: http.StatusGone, Invalid: http.StatusBadRequest, Unsupported: http.StatusNotImplemented,
	Denied: http.StatusForbidden, Unsent: http.StatusServiceUnavailable, Unknown: http.StatusServiceUnavailable,
}

// KindOf returns what a backend's error states.
func KindOf(err error) Kind {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, driver.ErrHeld):
		return Held
	case errors.Is(err, driver.ErrLost):
		return Lost
	case errors.Is(err, driver.ErrInvalid):
		return Invalid
	case errors.Is(err, driver.ErrUnsupported):
		return Unsupported
	case errors.Is(err, driver.ErrUnsent), errors.Is(err, driver.ErrClosed):
		return Unsent // of a server that drains; the client goes to the next
	}
	return Unknown
}

// ProblemOf describes a backend's error.
func ProblemOf(err error) Problem {
	p := Problem{Kind: KindOf(err), Detail: err.Error(), Spent: errors.Is(err, driver.ErrSpent)}
	p.Status = status[p.Kind]
	if errors.Is(err, driver.ErrClosed) {
		p.Detail = "the server shuts down"
	}
	var held *driver.HeldError
	if errors.As(err, &held) {
		p.Retry, p.Signaled = Up(held.Retry), held.Signaled
		p.Holders = FromHolders(held.Holders, false)
	}
	p.Title = http.StatusText(p.Status)
	return p
}

// ErrDenied: the server did not let the request in, because of who sent it. Nothing was done.
var ErrDenied = errors.New("denied")

// remoteError is a fact that a server has stated.
type remoteError struct {
	fact   error
	detail string
}

func (e *remoteError) Error() string { return e.detail }
func (e *remoteError) Unwrap() error { return e.fact }

// Err returns the error that a client makes of a kind and a detail.
func (k Kind) Err(detail string) error {
	fact, ok := map[Kind]error{
		Held: &driver.HeldError{}, Lost: driver.ErrLost, Invalid: driver.ErrInvalid, Unsupported: driver.ErrUnsupported,
		Denied: ErrDenied, Unsent: driver.ErrUnsent,
	}[k]
	switch {
	case k == OK:
		return nil
	case !ok:
		return fmt.Errorf("the server's outcome is unknown: %s", detail)
	}
	return &remoteError{fact, detail}
}

// Err returns the error that a client makes of a problem.
func (p Problem) Err() error {
	err := p.Kind.Err(p.Detail)
	if p.Kind == Held {
		err = &driver.HeldError{Retry: Duration(p.Retry), Signaled: p.Signaled, Holders: ToHolders(p.Holders)}
	}
	if p.Spent {
		err = driver.Spent(err)
	}
	return err
}

// Up returns d in milliseconds, rounded up: the TTL of a request.
func Up(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// Down returns d in milliseconds, rounded down: the TTL of a grant.
func Down(d time.Duration) int64 { return int64(d / time.Millisecond) }

// Duration returns ms as a duration; one that is too long for that becomes the longest.
func Duration(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, -most), most)) * time.Millisecond
}

// SegmentOf escapes a name as one segment of a path. Dots are escaped too, since "." and ".." are not names
// of segments.
func SegmentOf(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
}

// FromCaps describes c.
func FromCaps(c driver.Caps, watch, inspect bool) Caps {
	return Caps{
		Modes: modes(c.Modes), Fence: c.Fence, Floor: c.Floor, Downgrade: c.Downgrade, Observed: c.Observed, Late: Up(c.Late), Queueing: c.Queueing.String(),
		QueuedModes: modes(c.QueuedModes), Revocable: modes(c.Revocable),
		MinTTL: Up(c.MinTTL), MaxTTL: Down(c.MaxTTL), Poll: Up(c.Poll), Watch: watch, Inspect: inspect,
	}
}

// Driver returns c as the Caps of a backend called name.
func (c Caps) Driver(name string) driver.Caps {
	return driver.Caps{
		Name: name, Modes: driver.Modes(c.Modes...), Fence: c.Fence, Floor: c.Floor, Downgrade: c.Downgrade, Observed: c.Observed, Late: Duration(c.Late),
		Queueing: queueing(c.Queueing), QueuedModes: driver.Modes(c.QueuedModes...), Revocable: driver.Modes(c.Revocable...),
		MinTTL: Duration(c.MinTTL), MaxTTL: Duration(c.MaxTTL), Poll: Duration(c.Poll),
	}
}

func modes(s driver.ModeSet) []driver.Mode {
	var all []driver.Mode
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if s.Has(m) {
			all = append(all, m)
		}
	}
	return all
}

func queueing(s string) driver.Queueing {
	for q := driver.QueueNever; q <= driver.QueueAlways; q++ {
		if q.String() == s {
			return q
		}
	}
	return driver.QueueNever
}

// FromHold describes h.
func FromHold(h driver.Hold) Hold {
	return Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode, TTL: Up(h.TTL), Floor: h.Floor, Fence: h.Fence}
}

// Driver returns h for a backend.
func (h Hold) Driver() driver.Hold {
	if h.Mode == 0 {
		h.Mode = driver.Exclusive
	}
	return driver.Hold{Name: h.Name, Owner: h.Owner, Mode: h.Mode, TTL: Duration(h.TTL), Floor: h.Floor, Fence: h.Fence}
}

// FromRequest describes r.
func FromRequest(r driver.Request) Request {
	return Request{
		Hold: FromHold(r.Hold), Limit: r.Limit, Fixed: r.Fixed, Queue: r.Queue, Fences: r.Fences, Meta: r.Meta,
		Revocable: r.OnRevoke != nil,
	}
}

// Driver returns r for a backend, without its callbacks.
func (r Request) Driver() driver.Request {
	return driver.Request{
		Hold: r.Hold.Driver(), Limit: r.Limit, Fixed: r.Fixed, Queue: r.Queue, Fences: max(r.Fences, 1), Meta: r.Meta,
	}
}

// FromInfo describes i. It shows owners only if that is wanted.
func FromInfo(i driver.Info, owners bool) Info {
	info := Info{
		Name: i.Name, Mode: i.Mode, Limit: i.Limit, Holders: FromHolders(i.Holders, owners), Waiters: FromHolders(i.Waiters, owners),
	}
	if i.WaiterCount >= 0 {
		info.WaiterCount = &i.WaiterCount
	}
	return info
}

// Driver returns i as a backend's.
func (i Info) Driver() driver.Info {
	info := driver.Info{
		Name: i.Name, Mode: i.Mode, Limit: i.Limit, Holders: ToHolders(i.Holders), Waiters: ToHolders(i.Waiters), WaiterCount: -1,
	}
	if i.WaiterCount != nil {
		info.WaiterCount = *i.WaiterCount
	}
	return info
}

// FromHolders describes holders, with their owners if that is wanted.
func FromHolders(holders []driver.Holder, owners bool) []Holder {
	all := []Holder{}
	for _, h := range holders {
		w := Holder{Mode: h.Mode, Fence: h.Fence, Held: known(h.Held), Left: known(h.Left), Foreign: h.Foreign, Meta: h.Meta}
		if owners {
			w.Owner = h.Owner
		}
		all = append(all, w)
	}
	return all
}

// ToHolders returns holders as a backend's.
func ToHolders(holders []Holder) []driver.Holder {
	var all []driver.Holder
	for _, h := range holders {
		all = append(all, driver.Holder{
			Owner: h.Owner, Mode: h.Mode, Fence: h.Fence, Held: orUnknown(h.Held), Left: orUnknown(h.Left), Foreign: h.Foreign, Meta: h.Meta,
		})
	}
	return all
}

func known(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := Down(d)
	return &ms
}

func orUnknown(ms *int64) time.Duration {
	if ms == nil {
		return -1
	}
	return Duration(*ms)
}
