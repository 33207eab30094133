package etcdlock

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/metajson"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A hold, or a place in the queue, is a key:
//
//	prefix name / lease-in-hex
//
// as those of the official clients are. The key below "prefix name /" that was created first holds; no client
// interprets the rest of the key.

// maxOps is the default limit of operations in one etcd transaction.
const maxOps = 128

// folderEnd returns the first key after those in a folder.
func folderEnd(folder string) string { return folder[:len(folder)-1] + "0" }

// keyOf returns the key in a folder that has a lease of its own.
func keyOf(folder string, lease clientv3.LeaseID) string {
	return folder + strconv.FormatInt(int64(lease), 16)
}

// keyValue is the value of a key, as JSON. Any other value is another program's, and means a
// mutex.
type keyValue struct {
	Mode  string            `json:"distlock"` // exclusive, write, read, counted
	Owner string            `json:"owner"`
	Limit int               `json:"limit,omitempty"`
	Later bool              `json:"later,omitempty"` // not granted by this write
	Fence uint64            `json:"fence,omitempty"` // of a hold that was written again by a renewal
	Meta  map[string]string `json:"meta,omitempty"`
}

// metas encodes what all values of a process have in common.
var metas metajson.Cache

func encodeValue(r *driver.Request, later bool) string {
	v := keyValue{Mode: r.Mode.String(), Owner: r.Owner, Later: later}
	if r.Mode == driver.Counted {
		v.Limit = r.Limit
	}
	text := v.encode()
	if meta := metas.Encode(r.Meta); meta != "" {
		return text[:len(text)-1] + `,"meta":` + meta + "}"
	}
	return text
}

func (v *keyValue) encode() string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return string(text)
}

// lockKey is a key of a lock, as read from etcd.
type lockKey struct {
	keyValue
	mode              driver.Mode
	key, owner        string
	created, modified int64 // revisions
	lease             clientv3.LeaseID
	foreign           bool // another program's
}

// parseKey parses a key in a folder. It returns false if the key belongs to another lock, whose
// name continues after the slash.
func parseKey(folder string, kv *mvccpb.KeyValue) (lockKey, bool) {
	k := lockKey{key: string(kv.Key), created: kv.CreateRevision, modified: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	rest := k.key[len(folder):]
	if strings.Contains(rest, "/") {
		return k, false
	}
	if json.Unmarshal(kv.Value, &k.keyValue) == nil && k.Owner != "" {
		k.mode = parseMode(k.keyValue.Mode)
	}
	if k.mode == 0 {
		// Other programs reuse their keys: only the revision distinguishes their holds.
		k.keyValue, k.mode, k.foreign = keyValue{}, driver.Exclusive, true
		k.owner = rest + "@" + strconv.FormatInt(k.created, 10)
		return k, true
	}
	k.owner = k.Owner
	return k, true
}

func parseMode(s string) driver.Mode {
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if m.String() == s {
			return m
		}
	}
	return 0
}

func (k *lockKey) holder() driver.Holder {
	// The locks of the official clients have leases. A key without one may be any data.
	return driver.Holder{
		Owner: k.owner, Mode: k.mode, Fence: k.grantFence(), Held: -1, Left: -1, Meta: k.Meta,
		Foreign: k.foreign && k.lease == 0,
	}
}

// grantFence returns the fence of a hold: the revision of the grant, which is the last write to the key, or noted by it. It
// is 0 for a place in the queue, and for the hold of another program.
func (k *lockKey) grantFence() uint64 {
	switch {
	case k.Later || k.foreign:
		return 0
	case k.Fence > 0:
		return k.Fence
	}
	return uint64(k.modified)
}

// lockQueue has the keys of a lock in the order of their creation: first the holders, then the
// waiters.
type lockQueue []lockKey

func parseQueue(folder string, kvs []*mvccpb.KeyValue) lockQueue {
	var q lockQueue
	for _, kv := range kvs {
		if k, ok := parseKey(folder, kv); ok {
			q = append(q, k)
		}
	}
	slices.SortFunc(q, func(a, b lockKey) int {
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.key, b.key))
	})
	return q
}

// find returns the index of an Owner's first key; -1 if there is none.
func (q lockQueue) find(owner string) int {
	return slices.IndexFunc(q, func(k lockKey) bool { return k.owner == owner })
}

// holderCount returns how many keys at the front hold: the first, and the keys that share with it.
func (q lockQueue) holderCount() int {
	n := min(len(q), 1)
	for n < len(q) && q[n].shares(&q[0], n) {
		n++
	}
	return n
}

// shares reports whether k holds beside the first key, with this number of holders before it.
func (k *lockKey) shares(first *lockKey, before int) bool {
	switch k.mode {
	case driver.Read:
		return first.mode == driver.Read
	case driver.Counted:
		return first.mode == driver.Counted && k.Limit == first.Limit && before < k.Limit
	}
	return false
}

// heldError returns the refusal that names the holders.
func (q lockQueue) heldError(retry time.Duration) *driver.HeldError {
	e := &driver.HeldError{Retry: retry}
	for i := range q.holderCount() {
		e.Holders = append(e.Holders, q[i].holder())
	}
	return e
}

// blocker returns the last of the keys ahead that blocks a request; nil if it is granted.
func blocker(ahead lockQueue, mode driver.Mode, limit int) *lockKey {
	permits := 0
	for i := len(ahead) - 1; i >= 0; i-- {
		k := &ahead[i]
		switch {
		case mode == driver.Read && k.mode == driver.Read:
		case mode == driver.Counted && k.mode == driver.Counted && k.Limit == limit:
			permits++
		default:
			return k
		}
	}
	if mode == driver.Counted && permits >= limit {
		return &ahead[len(ahead)-1]
	}
	return nil
}

// shortQueue is the number of keys ahead up to which each attempt reads all of them.
const shortQueue = 16

// blockedWhile returns conditions under which a request stays blocked: its blocker is there,
// and, for a reader, hasn't become a reader; for a permit, none of the last permits ahead is
// gone. It returns nil where those would be too many.
func blockedWhile(ahead lockQueue, by *lockKey, mode driver.Mode, limit int) []clientv3.Cmp {
	switch {
	case mode == driver.Read:
		return []clientv3.Cmp{modifiedAt(by.key, by.modified)}
	case mode != driver.Counted || by.mode != driver.Counted || by.Limit != limit:
		return []clientv3.Cmp{createdAt(by.key, by.created)}
	case limit > shortQueue:
		return nil
	}
	var conds []clientv3.Cmp
	for _, k := range ahead[len(ahead)-limit:] {
		conds = append(conds, createdAt(k.key, k.created))
	}
	return conds
}

// freeWhen returns conditions under which nothing blocks a reader: all other keys ahead are gone. It returns nil for other
// requests, and where those would be too many.
func freeWhen(ahead lockQueue, mode driver.Mode) (conds []clientv3.Cmp) {
	if mode != driver.Read {
		return nil
	}
	for _, k := range ahead {
		if k.mode != driver.Read {
			conds = append(conds, clientv3.Compare(clientv3.CreateRevision(k.key), "!=", k.created))
		}
	}
	if len(conds) > shortQueue {
		return nil
	}
	return conds
}

// checkLimit returns an error if permits ahead, held or waited for, have another limit than the request. A waiter behind
// them would be refused after its wait.
func checkLimit(ahead lockQueue, r *driver.Request) error {
	if r.Mode != driver.Counted {
		return nil
	}
	i := slices.IndexFunc(ahead, func(k lockKey) bool { return k.mode == driver.Counted && k.Limit != r.Limit })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("%w: %s is in use with limit %d, requested with %d", driver.ErrInvalid, driver.Quote(r.Name), ahead[i].Limit, r.Limit)
}

// folderEmpty holds if there are no keys in the folder.
func folderEmpty(folder string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(folder).WithRange(folderEnd(folder)), "=", 0)
}

// folderUnchanged holds if no key in the folder was written after the revision.
func folderUnchanged(folder string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(folder).WithRange(folderEnd(folder)), "<", revision+1)
}

// folderFrom holds if no key in the folder was created before the revision.
func folderFrom(folder string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(folder).WithRange(folderEnd(folder)), ">", revision-1)
}

// createdAt holds if the key was created at the revision.
func createdAt(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
}

// modifiedAt holds if the key was last written at the revision. A write on this condition can't
// land late, after another write.
func modifiedAt(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

func getFolder(folder string, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(folder, append(opts, clientv3.WithRange(folderEnd(folder)))...)
}

func putKey(key string, lease clientv3.LeaseID, r *driver.Request, later bool) clientv3.Op {
	return clientv3.OpPut(key, encodeValue(r, later), clientv3.WithLease(lease))
}

// tooLargeToSend reports whether the client has refused to send a request of this size.
func tooLargeToSend(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "trying to send message larger")
}

// outcomeUnknown reports whether a call that returned err may have been executed, or may still
// be executed.
func outcomeUnknown(err error) bool {
	refused := rpctypes.EtcdError{}
	switch {
	case !errors.As(err, &refused):
		return !tooLargeToSend(err)
	case errors.Is(err, rpctypes.ErrNoLeader):
		return false // see Backend.prepare
	case errors.Is(err, rpctypes.ErrNoSpace):
		return true // servers say so also after the request that they have executed as the last one
	}
	switch refused.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal:
		return true
	}
	return false
}

// explain says more about errors whose reason is not plain. ErrInvalid is what no repetition can change.
func explain(err error) error {
	switch {
	case deniesUser(err):
		return fmt.Errorf("%s: %w", denials[etcdError(err)], err)
	case errors.Is(rpctypes.Error(err), rpctypes.ErrRequestTooLarge), tooLargeToSend(err):
		return fmt.Errorf("%w: name and metadata are too large for the server: %w", driver.ErrInvalid, err)
	}
	return err
}

// denials has the errors of servers that refuse a user. They may let the same user in a moment later.
var denials = map[error]string{
	rpctypes.ErrPermissionDenied: "the server's user may not do this (docs/backends/etcd.md lists the permissions)",
	rpctypes.ErrUserEmpty:        "the server wants a user and a password, as in etcd://user:password@host",
	rpctypes.ErrAuthFailed:       "wrong user or password",
}

// deniesUser reports whether a server has refused the user, and not the request.
func deniesUser(err error) bool { return denials[etcdError(err)] != "" }

// etcdError returns the server's error in err, or none.
func etcdError(err error) (e rpctypes.EtcdError) {
	errors.As(rpctypes.Error(err), &e)
	return e
}

// put writes a key again, attached to a lease, with the fence that its revision doesn't tell any more.
func (k *lockKey) put(lease clientv3.LeaseID) clientv3.Op {
	k.Fence = cmp.Or(k.Fence, k.grantFence())
	return clientv3.OpPut(k.key, k.keyValue.encode(), clientv3.WithLease(lease))
}

// delete deletes a key that is as it was read.
func (k *lockKey) delete() clientv3.Op {
	return clientv3.OpTxn([]clientv3.Cmp{modifiedAt(k.key, k.modified)}, []clientv3.Op{clientv3.OpDelete(k.key)}, nil)
}
