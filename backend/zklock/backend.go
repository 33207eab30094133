package zklock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/metajson"
	"github.com/distlock/distlock/internal/netaddr"
	"github.com/distlock/distlock/internal/wait"
	"github.com/distlock/distlock/internal/zk"
)

// Backend keeps locks in ZooKeeper. It is safe for concurrent use.
type Backend struct {
	opts *serverOptions
	caps driver.Caps

	life  context.Context // ends with Close, which holds mu then
	stop  context.CancelFunc
	tasks wait.Group
	meta  metajson.Cache

	worked atomic.Bool // an attempt has succeeded, or was refused because of others

	mu       sync.Mutex
	sessions map[time.Duration]*session // by the TTL of their holds
	claims   map[string]*claim          // by Owner
	watches  map[string]*queueWatch     // by Owner
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Watcher   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Revoker   = (*Backend)(nil)
)

// newBackend is for servers that grant session timeouts from least to most.
func newBackend(o *serverOptions, least, most time.Duration) *Backend {
	b := &Backend{
		opts: o, sessions: map[time.Duration]*session{}, claims: map[string]*claim{}, watches: map[string]*queueWatch{},
		caps: driver.Caps{
			Name: o.name, Modes: driver.AllModes, Revocable: driver.AllModes,
			Fence: true, Session: true, Downgrade: true, Queueing: driver.QueueAlways,
			MinTTL: least / timeoutFactor, MaxTTL: most / timeoutFactor,
		},
	}
	b.life, b.stop = context.WithCancel(context.Background())
	return b
}

// Caps describes the backend. The bounds of a TTL are half of the servers' bounds for a session
// timeout.
func (b *Backend) Caps() driver.Caps { return b.caps }

// Close ends the sessions, and with them all holds and queued attempts.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.stop()
	b.mu.Unlock()
	b.tasks.Wait()
	return nil
}

// goTask runs f in the background, unless the backend is closed.
func (b *Backend) goTask(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life.Err() == nil {
		b.tasks.Go(f)
	}
}

// checkRequest returns an error for a request that can't be granted.
func (b *Backend) checkRequest(r driver.Request) error {
	if b.life.Err() != nil {
		return driver.ErrClosed
	}
	if err := r.Validate(b.caps); err != nil {
		return err
	}
	switch {
	case !isUUID(r.Owner):
		return fmt.Errorf("%w: Owner %q: want a UUID", driver.ErrInvalid, r.Owner)
	case r.TTL > b.caps.MaxTTL:
		return fmt.Errorf("%w: TTL %v: want at most %v, half of the servers' maxSessionTimeout", driver.ErrInvalid, r.TTL, b.caps.MaxTTL)
	}
	return nil
}

// checkHold returns an error for a hold that can't exist.
func (b *Backend) checkHold(h driver.Hold) error {
	switch {
	case b.life.Err() != nil:
		return driver.ErrClosed
	case !b.caps.Modes.Has(h.Mode):
		return fmt.Errorf("%w: mode %v", driver.ErrUnsupported, h.Mode)
	case h.Name == "":
		return fmt.Errorf("%w: a lock without a name", driver.ErrInvalid)
	}
	return nil
}

var (
	// errNodeGone means that a claim's node was deleted: the attempt starts again.
	errNodeGone = errors.New("the lock's node is gone")

	errUnconfirmed = errors.New("the servers have not confirmed that the session lives long enough")
	errSessions    = errors.New("one session after the other has ended")
)

// refusals are errors of requests that changed nothing.
var refusals = []error{
	zk.ErrNotSent, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNoAuth, zk.ErrBadArguments, zk.ErrNoChildren,
	zk.ErrUnimplemented, zk.ErrTooLarge, zk.ErrSessionExpired, zk.ErrNoChroot, zk.ErrQuota, zk.ErrThrottled,
}

func notApplied(err error) bool {
	return slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) })
}

// sessionOver reports whether err proves that all nodes of the session are gone.
func sessionOver(err error) bool {
	return errors.Is(err, zk.ErrSessionExpired) || errors.Is(err, zk.ErrClosed)
}

// fail wraps the error of a call. ErrInvalid is what is wrong with the request; what the servers refuse for now is no fact.
func (b *Backend) fail(what, name string, err error) error {
	if held := (*driver.HeldError)(nil); errors.As(err, &held) {
		return held
	}
	if b.life.Err() != nil {
		return driver.ErrClosed
	}
	if why := wrongRequest(err); why != "" && !driver.Final(err) {
		err = fmt.Errorf("%w: %s: %w", driver.ErrInvalid, why, err)
	} else if why := b.opts.refusal(err); why != "" {
		err = fmt.Errorf("%s: %w", why, err)
	}
	return fmt.Errorf("zklock: %s %s: %w", what, driver.Quote(name), withoutOwners{err})
}

// firstCall makes ErrInvalid of a refusal to a backend that has never worked: ZooKeeper takes any password, so Open
// can't know whether it is a wrong one.
func (b *Backend) firstCall(err error) error {
	if !b.worked.Load() && errors.Is(err, zk.ErrNoAuth) {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return err
}

// withoutOwners is an error whose text has no Owners. The names of nodes contain them, and whoever knows an Owner can
// release its hold.
type withoutOwners struct{ error }

func (w withoutOwners) Unwrap() error { return w.error }

func (w withoutOwners) Error() string {
	var b strings.Builder
	rest := w.error.Error()
	for {
		before, after, found := strings.Cut(rest, protection)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString(protection + "…")
		rest = after[min(len(after), ownerLength):]
	}
}

// ownerLength is the length of a UUID.
const ownerLength = 36

// serverOptions are the options of a URL.
type serverOptions struct {
	name    string // for Caps
	servers []string
	chroot  string
	user    string              // of the URL
	login   netaddr.Credentials // nil: none
	private bool                // only the user has access to the nodes
	certs   *netaddr.Certificates
	timeout time.Duration // for opening a session
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
}

// config returns the configuration of a session with a timeout.
func (o *serverOptions) config(timeout time.Duration) zk.Config {
	return zk.Config{
		Servers: o.servers, Chroot: o.chroot, Timeout: timeout,
		Login: o.login, Private: o.private, TLS: o.certs, Dial: o.dial,
	}
}

// refusal says what the servers refuse, whatever is requested, or returns "".
func (o *serverOptions) refusal(err error) string {
	who := "the user of this login"
	if o.user != "" {
		who = fmt.Sprintf("the user %q", o.user)
	}
	switch {
	case errors.Is(err, zk.ErrNoAuth) && o.login == nil:
		return "it is not permitted, and the URL has no user"
	case errors.Is(err, zk.ErrNoAuth):
		return "it is not permitted to " + who + " with this password"
	case errors.Is(err, zk.ErrAuthFailed):
		return "the servers refuse " + who
	case errors.Is(err, zk.ErrNoChroot):
		return fmt.Sprintf("the chroot %s does not exist: create it first", o.chroot)
	case errors.Is(err, zk.ErrUnimplemented):
		return tooOld
	}
	return ""
}

// wrongRequest says what is wrong with a request, or returns "".
func wrongRequest(err error) string {
	switch {
	case errors.Is(err, zk.ErrNoChildren):
		return "a part of the lock's path is another program's ephemeral node"
	case errors.Is(err, zk.ErrBadArguments):
		return "the servers refuse the path"
	case errors.Is(err, zk.ErrTooLarge) && errors.Is(err, zk.ErrNotSent):
		return "the name and the metadata are too long"
	}
	return ""
}

const tooOld = "the servers are older than ZooKeeper 3.5"

// explain adds to a failure to open a session what the user may do about it.
func (o *serverOptions) explain(err error) error {
	if o.refusal(err) != "" || driver.Final(err) {
		return err
	}
	hint := ""
	if o.certs == nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		hint = "; do the servers want TLS, as in zks://?"
	}
	return fmt.Errorf("none of %s opened a session: %w%s", strings.Join(o.servers, ", "), err, hint)
}
