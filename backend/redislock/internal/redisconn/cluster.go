package redisconn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// NewCluster returns the client of a Redis Cluster, whose servers say which of them has which slot.
// seeds are the servers to query first, and open returns a server.
func NewCluster(name string, seeds []string, open func(addr string) *Server) *Client {
	return newClient(topology{
		name: name, slotted: true, open: open,
		load: func(ctx context.Context, known []string, at func(addr string) (*Server, error)) (slotTable, error) {
			if len(known) > 0 {
				// The seeds are queried only if these do not answer: they may be gone.
				soon, cancel := context.WithTimeout(ctx, refreshTimeout/2)
				defer cancel()
				if t, err := querySlots(soon, known, at); err == nil {
					return t, nil
				}
			}
			return querySlots(ctx, seeds, at)
		},
	})
}

// querySlots queries servers for the slot table.
func querySlots(ctx context.Context, addrs []string, at func(addr string) (*Server, error)) (slotTable, error) {
	return firstAnswer(ctx, shuffled(addrs), func(ctx context.Context, addr string) (slotTable, error) {
		s, err := at(addr)
		if err != nil {
			return nil, err
		}
		reply, err := s.Do(ctx, []string{"CLUSTER", "SLOTS"})
		if err != nil {
			return nil, noCluster(err)
		}
		return readSlots(reply, addr)
	})
}

// noCluster explains why a server did not return its slots.
func noCluster(err error) error {
	if re, is := AsReply(err); is && (re.UnknownCommand() || strings.Contains(re.Text, "cluster support disabled")) {
		return Refuse("the server is not part of a Redis Cluster: want redis:// or redis+sentinel://", re)
	}
	return Explain(err)
}

// readSlots reads the answer to CLUSTER SLOTS of the server at origin. A server that has left the
// cluster knows of no slots.
func readSlots(reply any, origin string) (slotTable, error) {
	list, ok := reply.([]any)
	switch {
	case !ok:
		return nil, ErrUnexpected
	case len(list) == 0:
		return nil, errNoSlots
	}
	t := make(slotTable, slots)
	for _, entry := range list {
		e, _ := entry.([]any)
		if len(e) < 3 {
			return nil, ErrUnexpected
		}
		owner, _ := e[2].([]any)
		first, last := Integer(e[0]), Integer(e[1])
		if len(owner) < 2 || first < 0 || last >= slots {
			return nil, ErrUnexpected
		}
		addr := endpoint(Text(owner[0]), Integer(owner[1]), origin)
		for slot := first; slot <= last; slot++ {
			t[slot] = addr
		}
	}
	return t, nil
}

// endpoint returns an address as a client can use it. A server that does not know its own name
// means the name by which it was reached. A server with TLS only may return port 0.
func endpoint(host string, port int64, origin string) string {
	sameHost, samePort, _ := net.SplitHostPort(origin)
	if host == "" || host == "?" {
		host = sameHost
	}
	if port == 0 {
		return net.JoinHostPort(host, samePort)
	}
	return net.JoinHostPort(host, strconv.FormatInt(port, 10))
}

func shuffled(list []string) []string {
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	return list
}

// hedgeDelay is the time after which the next server is queried too.
const hedgeDelay = 300 * time.Millisecond

// firstAnswer queries one server after the other: the next one once a query has failed or takes
// long. It returns the first answer and does not wait for the other queries.
func firstAnswer[T any](ctx context.Context, addrs []string, ask func(ctx context.Context, addr string) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		value T
		err   error
	}
	results := make(chan result, len(addrs))
	next := time.NewTimer(0)
	defer next.Stop()
	var errs []error
	var none T
	for asked := 0; len(errs) < len(addrs); {
		select {
		case r := <-results:
			if r.err == nil {
				return r.value, nil
			}
			errs = append(errs, r.err)
			next.Reset(0)
		case <-next.C:
			if asked == len(addrs) {
				break
			}
			addr := addrs[asked]
			asked++
			go func() {
				value, err := ask(ctx, addr)
				results <- result{value, err}
			}()
			next.Reset(hedgeDelay)
		case <-ctx.Done():
			return none, errors.Join(append(errs, ctx.Err())...)
		}
	}
	return none, mostTelling(errs)
}

// mostTelling returns a refusal, which says more than a missing answer, or all errors.
func mostTelling(errs []error) error {
	if i := slices.IndexFunc(errs, IsRefusal); i >= 0 {
		return errs[i]
	}
	return errors.Join(errs...)
}

// slots is the number of a cluster's slots.
const slots = 16384

// SlotOf returns the slot of a key: the slot of its hash tag if it has one, or of the whole key.
func SlotOf(key string) int {
	if tag, ok := HashTag(key); ok {
		key = tag
	}
	return int(crc16(key)) % slots
}

// HashTag returns the part of a key that decides its slot, if it has one.
func HashTag(key string) (tag string, ok bool) {
	_, rest, ok := strings.Cut(key, "{")
	if !ok {
		return "", false
	}
	tag, _, ok = strings.Cut(rest, "}")
	return tag, ok && tag != ""
}

// crc16 is the checksum of clusters: CCITT, from zero.
func crc16(s string) uint16 {
	var sum uint16
	for i := range len(s) {
		sum = sum<<8 ^ crcTable[byte(sum>>8)^s[i]]
	}
	return sum
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		sum := uint16(i) << 8
		for range 8 {
			if sum&0x8000 != 0 {
				sum = sum<<1 ^ 0x1021
			} else {
				sum <<= 1
			}
		}
		table[i] = sum
	}
	return table
}()

// SlotTags returns for each slot the shortest number that lies in it.
var SlotTags = sync.OnceValue(func() *[slots]string {
	var tags [slots]string
	for n, left := 0, slots; left > 0; n++ {
		tag := strconv.Itoa(n)
		if at := &tags[crc16(tag)%slots]; *at == "" {
			*at = tag
			left--
		}
	}
	return &tags
})

// slotTable has the address of the server of each slot, or a single address if one server has all
// keys.
type slotTable []string

// owner returns the address for a key, or of any server for no key.
func (t slotTable) owner(key string) string {
	switch {
	case key == "":
		return cmp.Or(t...)
	case len(t) == 1:
		return t[0]
	}
	return t[SlotOf(key)]
}

func (t slotTable) addrs() []string {
	list := slices.Compact(slices.Clone(t)) // most slots have the same server as the one before
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(addr string) bool { return addr == "" })
}

// sentinelInterval is how often sentinels are queried. A replaced master that can still be reached
// may grant locks for this long, and until they answer.
const sentinelInterval = time.Second

// SentinelOptions say how to reach sentinels and the master.
type SentinelOptions struct {
	Addrs        []string
	Master       string
	DialSentinel func(addr string) *Server // a sentinel
	DialMaster   func(addr string) *Server // a master
	Name         string
}

// NewSentinel returns the client of the master that sentinels name.
func NewSentinel(o SentinelOptions) *Client {
	sentinels := map[string]*Server{}
	for _, addr := range o.Addrs {
		sentinels[addr] = o.DialSentinel(addr)
	}
	var heard time.Time // when most of them agreed
	return newClient(topology{
		name: o.Name, maxAge: sentinelInterval, open: o.DialMaster,
		load: func(ctx context.Context, known []string, _ func(addr string) (*Server, error)) (slotTable, error) {
			master, majority, err := mostNamed(ctx, o.Addrs, cmp.Or(known...), func(ctx context.Context, addr string) (string, error) {
				return masterBy(ctx, addr, sentinels[addr], o.Master)
			})
			switch {
			case majority || len(known) == 0:
				heard = time.Now()
			case err == nil && time.Since(heard) < minorityAfter:
				return slotTable(known), nil
			}
			return slotTable{master}, err
		},
		close: func() {
			for _, s := range sentinels {
				s.Close()
			}
		},
	})
}

const (
	settleTime    = 500 * time.Millisecond // for the other sentinels' answers, behind the first one
	minorityAfter = 5 * time.Second        // without a majority, after which a minority may name another master
)

// mostNamed asks all sentinels for the master, and returns the one that more than half of them name, or else a minority: the known one, if
// any names it. One sentinel that is cut off may name a master of old: its clients would have locks there beside the others' holders.
func mostNamed(ctx context.Context, addrs []string, known string, ask func(ctx context.Context, addr string) (string, error)) (master string, majority bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan Answer, len(addrs))
	for _, addr := range addrs {
		go func() {
			name, err := ask(ctx, addr)
			answers <- Answer{name, err}
		}()
	}
	votes, errs := map[string]int{}, []error(nil)
	for range addrs {
		a := <-answers
		if a.Err != nil {
			errs = append(errs, a.Err)
			continue
		}
		time.AfterFunc(settleTime, cancel)
		master = Text(a.Reply)
		if votes[master]++; 2*votes[master] > len(addrs) {
			return master, true, nil
		}
	}
	switch {
	case votes[known] > 0:
		master = known
	case len(votes) == 0:
		err = mostTelling(errs)
	case len(votes) > 1:
		err = fmt.Errorf("the sentinels name different masters: %s", strings.Join(slices.Sorted(maps.Keys(votes)), ", "))
	}
	return master, false, err
}

// masterBy queries the sentinel at addr for the address of a master.
func masterBy(ctx context.Context, addr string, sentinel *Server, master string) (string, error) {
	reply, err := sentinel.Do(ctx, []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", master})
	re := (*ReplyError)(nil)
	switch list, _ := reply.([]any); {
	case errors.As(err, &re) && strings.Contains(re.Text, "unknown command"):
		return "", Refuse(fmt.Sprintf("the server at %s is no sentinel: want the addresses of sentinels, or redis:// for a server without", addr), re)
	case errors.As(err, &re) && (re.HasCode("NOAUTH") || re.HasCode("WRONGPASS")):
		return "", Refuse(fmt.Sprintf("the sentinel %s wants another user or password: sentinel_user, sentinel_password", addr), err)
	case err != nil:
		return "", fmt.Errorf("sentinel %s: %w", addr, Explain(err))
	case reply == nil:
		return "", Refuse(fmt.Sprintf("the sentinel %s knows no master named %q", addr, master), nil)
	case len(list) != 2:
		return "", fmt.Errorf("sentinel %s: %w", addr, ErrUnexpected)
	default:
		return net.JoinHostPort(Text(list[0]), Text(list[1])), nil
	}
}
