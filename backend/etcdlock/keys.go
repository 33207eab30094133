package etcdlock

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A hold or a place in line is a key:
//
//	prefix name / lease-in-hex - slot
//
// The official clients' keys end after the lease. Whoever has the key that was created
// first under "prefix name /" holds; nobody reads what stands behind that slash. The
// slot lets one lease have many keys of one name. It is taken by one Owner at a time, so
// that an attempt without an answer can be repeated.

// folder is where the keys of a lock lie.
func (b *Backend) folder(name string) string { return b.prefix + name + "/" }

// folderEnd is the first key behind those in a folder.
func folderEnd(folder string) string { return folder[:len(folder)-1] + "0" }

func keySuffix(lease clientv3.LeaseID, slot string) string {
	return strconv.FormatInt(int64(lease), 16) + "-" + slot
}

// keyValue is the value of a key, as JSON. Keys with any other value are those of other
// programs, and mean a mutex.
type keyValue struct {
	Mode  string            `json:"distlock"` // exclusive, write, read, counted
	Owner string            `json:"owner"`
	Limit int               `json:"limit,omitempty"`
	Later bool              `json:"later,omitempty"` // written when others were before it
	Meta  map[string]string `json:"meta,omitempty"`
}

func encodeValue(r *driver.Request, later bool) string {
	n := keyValue{Mode: r.Mode.String(), Owner: r.Owner, Later: later, Meta: r.Meta}
	if r.Mode == driver.Counted {
		n.Limit = r.Limit
	}
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return string(text)
}

// lockKey is a key of a lock.
type lockKey struct {
	keyValue
	mode              driver.Mode
	key, owner        string
	created, modified int64 // revisions
	lease             clientv3.LeaseID
	otherLease        bool // to another lease than the one it was made with
	foreign           bool
}

// parseKey reads a key that lies in a folder; false if it belongs to another lock, the
// name of which goes on behind the slash.
func parseKey(folder string, kv *mvccpb.KeyValue) (lockKey, bool) {
	e := lockKey{key: string(kv.Key), created: kv.CreateRevision, modified: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	rest := e.key[len(folder):]
	if strings.Contains(rest, "/") {
		return e, false
	}
	first, _, ours := strings.Cut(rest, "-")
	if json.Unmarshal(kv.Value, &e.keyValue) == nil && ours && e.Owner != "" {
		e.mode = modeNamed(e.keyValue.Mode)
	}
	if e.mode == 0 {
		e.keyValue, e.mode, e.foreign = keyValue{}, driver.Exclusive, true
		e.owner = foreignOwner(rest, e.created)
		return e, true
	}
	e.owner, e.otherLease = e.Owner, first != strconv.FormatInt(kv.Lease, 16)
	return e, true
}

func modeNamed(s string) driver.Mode {
	for m := driver.Exclusive; m <= driver.Counted; m++ {
		if m.String() == s {
			return m
		}
	}
	return 0
}

// foreignOwner identifies a hold of another program, which may use its key again: only
// the revision tells one hold from the next.
func foreignOwner(rest string, create int64) string {
	return rest + "@" + strconv.FormatInt(create, 10)
}

func (e *lockKey) holder() driver.Holder {
	h := driver.Holder{Owner: e.owner, Mode: e.mode, Held: -1, Left: -1, Meta: e.Meta}
	// Who came when others were before it has a fence that is not written down, and what
	// moves a key to another lease is no grant.
	if !e.Later && !e.otherLease && !e.foreign {
		h.Fence = uint64(e.modified)
	}
	return h
}
