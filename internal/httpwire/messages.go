// Package httpwire has the messages that a distlock server and its clients exchange: JSON over HTTP, and
// server-sent events. The server's openapi.json describes them for clients in other languages.
//
// Requests and answers carry durations in milliseconds, never instants. A TTL is rounded up on its way to
// the server, and down on its way back. Fences are decimal strings: JSON numbers of JavaScript have 53 bits.
package httpwire

import (
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
	Wait    int64 `json:"wait_ms"`
}

// Caps is driver.Caps without its name.
type Caps struct {
	Modes       []driver.Mode `json:"modes"`
	Fence       bool          `json:"fence"`
	Floor       bool          `json:"floor"`
	Downgrade   bool          `json:"downgrade"`
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
	Name    string      `json:"name"`
	Owner   string      `json:"owner"`
	Mode    driver.Mode `json:"mode,omitempty"` // exclusive if absent
	TTL     int64       `json:"ttl_ms,omitempty"`
	Floor   uint64      `json:"floor,string,omitempty"`
	Shorten bool        `json:"shorten,omitempty"`
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
