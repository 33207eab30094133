package redislock

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/backend/redislock/internal/redisconn"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
)

// storage is a way to keep holds in Redis: by scripts, by scripts that replicas acknowledge, or
// by plain commands.
type storage interface {
	// acquire makes one attempt.
	acquire(ctx context.Context, rec *recipe, r driver.Request) (driver.Grant, error)

	// renew returns an error for each hold of a batch, or nil.
	renew(ctx context.Context, x renewBatch) []error

	// release ends a hold.
	release(ctx context.Context, rec *recipe, h driver.Hold) error

	// readKey returns what is kept under a key.
	readKey(ctx context.Context, key string) (snapshot, error)

	// locks returns the locks among keys, which are in one slot and of one type.
	locks(ctx context.Context, kind string, keys []string) ([]string, error)
}

// renewBatch has holds that are renewed together.
type renewBatch struct {
	recipe *recipe
	floor  uint64
	holds  []driver.Hold
	at     []int // their indices in the caller's slice
}

// snapshot is the state that Redis keeps under a name.
type snapshot struct {
	kind    string
	now     time.Duration // since 1970, by the server's clock
	left    int64         // ms, of the key
	value   string
	holders []holderRecord
	waiters []driver.Holder
}

type holderRecord struct {
	written string // field or permit id
	left    int64
	note    string
}

// store is the part that all storages share.
type store struct {
	client redisconn.Client
	pubsub *redisconn.PubSub
	layout *layout
	prefix string
	meta   lastMeta

	replicas replicas // whose acknowledgement a lock needs
}

// layout is how locks are written in Redis: by one recipe for each mode.
type layout struct {
	recipes [driver.Counted + 1]*recipe

	// counter returns the key of a name's fence counter. Each of its numbers stands for span
	// fences.
	counter func(prefix, name string) string
	span    uint64

	// queueKeys returns the keys of the queue of an exclusive lock: the queue itself, whose
	// key begins with queuePrefix, the ends of our waiters' tickets, and in the layout
	// "redisson" the ends of Java's.
	queueKeys   func(name string) []string
	queuePrefix string
}

// recipe is how the holds of one mode are written.
type recipe struct {
	acquire, renew, release *script

	// field returns how an owner is written.
	field func(owner string) string
	// renewalOf returns how a renewal finds it, if that differs.
	renewalOf func(owner string) string

	// keys appends the keys of a hold, the same for the three scripts; a renewal needs the
	// first renewalKeys.
	keys        func(to []string, name, owner string) []string
	renewalKeys int

	// acquireArgs come after field, TTL and note; releaseArgs after field and channel.
	acquireArgs func(name string, r driver.Request) []string
	releaseArgs func(name string) []string

	channel     func(name string) string
	ownChannels bool // each queued waiter has a channel of its own, as Java has it
	// wakes returns how many waiters a message on the channel lets in.
	wakes func(message string) int
	span  uint64
}

func (r *recipe) renewalField(owner string) string {
	if r.renewalOf != nil {
		return r.renewalOf(owner)
	}
	return r.field(owner)
}

// channelFor returns the channel that notifies req's waiter: if it is queued, the channel of its
// client, or one of its own.
func (r *recipe) channelFor(name string, req driver.Request) string {
	switch {
	case req.Queue && r.ownChannels:
		return r.channel(name) + ":" + r.field(req.Owner)
	case req.Queue:
		return clientChannel(r.channel(name), req.Owner)
	}
	return r.channel(name)
}

// clientChannel returns the channel that notifies the queued waiters of owner's client. The message is
// the Owner of the waiter.
func clientChannel(channel, owner string) string {
	return channel + ":" + owner[:min(len(owner), driver.OwnersStart)]
}

const wakeAll = 1 << 30

// queuedRelease is the message on the channel of a lock of the layout "redisson" that was released while
// others are queued: the first of them is notified otherwise. Java reads it as 0, like its own message.
const queuedRelease = "00"

// wakeOne says that a released exclusive lock lets one waiter in.
func wakeOne(message string) int {
	if message == queuedRelease {
		return 0
	}
	return 1
}

// wakePermits reads Redisson's message on a semaphore's channel: the number of free permits.
func wakePermits(message string) int {
	n, err := strconv.Atoi(message)
	if err != nil {
		return wakeAll
	}
	return n
}

// wakeReaders reads Redisson's message on a read/write lock's channel. The last reader sends "0",
// for which only a writer can wait; a writer sends "1".
func wakeReaders(message string) int {
	if message == "0" {
		return 1
	}
	return wakeAll
}

// fencesPerGrant is how many fences each grant of the string layout has. The counter follows
// the clock in microseconds, which replaces it if it is lost. Its number is multiplied, so that
// many fences do not make the counter run ahead of the clock.
const fencesPerGrant = 1024

// stringLayout writes an exclusive lock as SET name value NX PX does: a string, whose value
// begins with the Owner.
func stringLayout(strict bool) *layout {
	l := &layout{
		counter:   func(prefix, _ string) string { return prefix + counterName },
		span:      fencesPerGrant,
		queueKeys: ownQueueKeys, queuePrefix: ownQueuePrefix,
	}
	if strict {
		l.counter = slotCounter
	}
	l.recipes[driver.Exclusive] = &recipe{
		acquire: compose("fence_stream", "string_take_free", "foreign", "queue", "enqueue", "string_take"),
		renew:   compose("fence_stream", "ask", "lost", "keep", "string_keep"),
		release: compose("ask", "publish", "string_release_alone", "lost", "queue", "dequeue", "string_release"),
		field:   func(owner string) string { return owner },
		keys: func(to []string, name, _ string) []string {
			queue, tickets := ownQueue(name)
			return append(to, name, queue, tickets)
		},
		renewalKeys: 1,
		channel:     freeChannel,
		wakes:       wakeOne,
		span:        fencesPerGrant,
	}
	addReadWrite(l, "fence_stream")
	addCounted(l, "fence_stream", false)
	return l
}

// slotCounter returns the counter for the names of one slot: a script of a cluster reaches
// no other slot. A prefix with a hash tag has all its names in one.
func slotCounter(prefix, name string) string {
	if _, ok := redisconn.HashTag(prefix); ok {
		return prefix + counterName
	}
	return prefix + counterName + ":{" + redisconn.SlotTags()[redisconn.SlotOf(prefix+name)] + "}"
}

// redissonLayout writes an exclusive lock as Redisson's RLock and RFencedLock do.
//
// Hold counts are set to 1 and never counted up: a second attempt of an Owner is for the same
// hold, also when the first answer was lost.
func redissonLayout() *layout {
	l := &layout{
		counter:   func(prefix, name string) string { return tokenKey(prefix + name) },
		span:      1,
		queueKeys: javaQueueKeys, queuePrefix: javaQueuePrefix,
	}
	l.recipes[driver.Exclusive] = &recipe{
		acquire: compose("fence_token", "hold", "foreign", "queue", "enqueue", "hash_take"),
		renew:   compose("fence_token", "ask", "lost", "keep", "hash_keep"),
		release: compose("ask", "lost", "publish", "queue", "dequeue", "hash_release"),
		field:   field,
		keys: func(to []string, name, owner string) []string {
			return append(append(to, name, holdKey(name, owner)), javaQueueKeys(name)...)
		},
		renewalKeys: 2,
		acquireArgs: func(_ string, r driver.Request) []string { return []string{bit(r.Queue)} },
		channel:     lockChannel,
		ownChannels: true,
		wakes:       wakeOne,
		span:        1,
	}
	addReadWrite(l, "fence_token")
	addCounted(l, "fence_token", true)
	return l
}

// addReadWrite adds Redisson's RReadWriteLock, which both layouts have.
func addReadWrite(l *layout, fences string) {
	write := &recipe{
		acquire:   compose(fences, "hold", "foreign", "write_take"),
		renew:     compose(fences, "ask", "lost", "keep", "hash_keep"),
		release:   compose("ask", "lost", "publish", "readers", "rw_release"),
		field:     field,
		renewalOf: func(owner string) string { return field(owner) + ":write" },
		keys: func(to []string, name, owner string) []string {
			return append(to, name, holdKey(name, owner), readerKey(name, owner))
		},
		renewalKeys: 2,
		releaseArgs: func(name string) []string { return []string{tagged(name)} },
		channel:     rwChannel,
		wakes:       wakeReaders,
		span:        l.span,
	}
	read := *write
	read.acquire = compose(fences, "hold", "foreign", "publish", "read_take")
	read.renew = compose(fences, "ask", "lost", "keep", "read_keep")
	read.renewalOf, read.renewalKeys, read.span = nil, 3, 1
	read.acquireArgs = func(name string, _ driver.Request) []string { return []string{rwChannel(name)} }
	l.recipes[driver.Write], l.recipes[driver.Read] = write, &read
}

// addCounted adds Redisson's RPermitExpirableSemaphore, which both layouts have.
//
// In Java a semaphore is made once (trySetPermits) and stays until it is deleted: a
// Java waiter whose semaphore is gone waits for ever. So it stays in the layout "redisson".
// In the layout "string" it ends with its last permit.
func addCounted(l *layout, fences string, stays bool) {
	l.recipes[driver.Counted] = &recipe{
		acquire: compose(fences, "hold", "foreign", "publish", "permit", "permit_take"),
		renew:   compose(fences, "ask", "lost", "keep", "permit", "permit_keep"),
		release: compose("ask", "lost", "publish", "permit", "permit_release"),
		field:   permitID,
		keys: func(to []string, name, owner string) []string {
			return append(to, name, holdKey(name, owner), permitsKey(name))
		},
		renewalKeys: 3,
		acquireArgs: func(name string, r driver.Request) []string {
			return []string{permitsChannel(name), strconv.Itoa(r.Limit), bit(stays)}
		},
		releaseArgs: func(string) []string { return []string{bit(stays)} },
		channel:     permitsChannel,
		wakes:       wakePermits,
		span:        1,
	}
}

// scripted keeps holds by scripts.
type scripted struct{ *store }

//go:embed scripts/*.lua
var sources embed.FS

// script is a Lua script, in a version for each pub/sub mode. A version is composed on first use: a
// program needs few of them.
type script [redisconn.PubSubSharded + 1]func() version

// version is a script's source and hash.
type version struct{ source, sha string }

func (s *script) in(mode redisconn.PubSubMode) version { return s[mode]() }

// publishers are the files that publish in each mode.
var publishers = [...]string{redisconn.PubSubClassic: "publish", redisconn.PubSubSharded: "spublish"}

// compose joins files to a script. Each comes behind the files that it needs.
func compose(files ...string) *script {
	var s script
	for v := redisconn.PubSubClassic; v <= redisconn.PubSubSharded; v++ {
		s[v] = sync.OnceValue(func() version { return composeIn(v, files) })
	}
	return &s
}

func composeIn(v redisconn.PubSubMode, files []string) version {
	var b strings.Builder
	for _, file := range files {
		if file == "publish" {
			file = publishers[v]
		}
		text, err := sources.ReadFile("scripts/" + file + ".lua")
		if err != nil {
			panic(err) // a file that is not in the binary: no test passes
		}
		b.Write(text)
	}
	sum := sha1.Sum([]byte(b.String()))
	return version{source: b.String(), sha: hex.EncodeToString(sum[:])}
}

var (
	inspectScript = compose("foreign", "inspect")
	listStrings   = compose("foreign", "list_strings")
	listHashes    = compose("foreign", "list_hashes")
)

// call is the command that runs a script.
type call struct {
	words []string // EVALSHA and the hash, or EVAL and the source; the number of keys; keys; arguments
	keys  int
}

// beforeKeys is the number of words before a script's keys.
const beforeKeys = 3

// newCall returns a call with these keys, which stand behind beforeKeys words to be filled in.
func newCall(keys []string) call { return call{words: keys, keys: len(keys) - beforeKeys} }

// words returns the beginning of a command for so many keys and arguments.
func words(n int) []string { return make([]string, beforeKeys, beforeKeys+n) }

// callOf returns a call with copies of keys and args.
func callOf(keys, args []string) call {
	c := newCall(append(words(len(keys)+len(args)), keys...))
	c.add(args...)
	return c
}

func (c *call) add(args ...string) { c.words = append(c.words, args...) }

// routingKey returns the key that says where the script runs.
func (c *call) routingKey() string { return c.words[beforeKeys] }

// run runs a script at the server that has its first key.
func (s *store) run(ctx context.Context, script *script, c call) (any, error) {
	return s.runBy(ctx, script, c, func(command []string) (any, error) { return s.client.Do(ctx, c.routingKey(), command) })
}

// runBy runs a script that send sends.
func (s *store) runBy(ctx context.Context, script *script, c call, send func(command []string) (any, error)) (any, error) {
	mode, err := s.pubsub.Detect(ctx, s.client)
	if err != nil {
		return nil, driver.Unsent(redisconn.Explain(err))
	}
	v := script.in(mode)
	command := c.words
	command[0], command[1], command[2] = "EVALSHA", v.sha, strconv.Itoa(c.keys)
	reply, err := send(command)
	if err == nil {
		return reply, nil
	}
	if re := (*redisconn.ReplyError)(nil); errors.As(err, &re) && re.HasCode("NOSCRIPT") {
		// The server is new or was restarted. It has not run anything.
		command[0], command[1] = "EVAL", v.source
		reply, err = send(command)
	}
	if deniesScripts(err) {
		err = redisconn.Refuse(fmt.Sprintf("the server's user may not run scripts; without them there are exclusive locks: scripts=off in a URL, or Options.Scripts: %v", err), err)
	}
	return reply, redisconn.Explain(err)
}

// deniesScripts reports whether the server refused to run a script, or any.
func deniesScripts(err error) bool {
	re, is := redisconn.AsReply(err)
	return is && (re.HasCode("NOPERM") && strings.Contains(re.Text, "'eval") || re.UnknownCommand())
}

// faultOf returns what is wrong with a request, if err is a server's answer that says so. It returns other
// errors unchanged.
func (s *store) faultOf(name string, err error) error {
	re, is := redisconn.AsReply(err)
	switch {
	case !is:
		return err
	case re.HasCode("NOLOCK"):
		_, data, _ := strings.Cut(redisconn.WithoutScript(re.Text), "NOLOCK ")
		return s.noLock(name, data)
	case re.HasCode("INVALID"):
		return fmt.Errorf("%w: %s", driver.ErrInvalid, strings.TrimPrefix(redisconn.WithoutScript(re.Text), "INVALID "))
	case re.HasCode("WRONGTYPE"):
		return redisconn.Invalid("this name is used for another kind of lock, or for other data", re)
	}
	return err
}

// notTaken marks the error of an attempt that was not sent, or of which the server has executed nothing.
func notTaken(err error) error {
	if redisconn.Unexecuted(err) {
		return driver.Unsent(err)
	}
	return unsent.Mark(err)
}

// number64 reads a counter's answer: a stream's id, or a decimal number. Either follows the
// server's clock in microseconds.
func number64(id string) (uint64, error) {
	ms, seq, stream := strings.Cut(id, "-")
	n, err := strconv.ParseUint(ms, 10, 63)
	if err != nil || !stream {
		return n, err
	}
	s, err := strconv.ParseUint(seq, 10, 63)
	return n*perMilli + s, err
}

// perMilli is how many fences of the stream fall into a millisecond.
const perMilli = 1000

// fence returns the first fence of a grant with this answer of the counter.
func (l *layout) fence(id string) (uint64, error) {
	n, err := number64(id)
	return n * l.span, err
}

// floorID returns the id to which the counter must be raised for later fences to exceed floor.
func (l *layout) floorID(floor uint64) string {
	n := floor / l.span
	if l.span == 1 {
		return strconv.FormatUint(n, 10)
	}
	return strconv.FormatUint(n/perMilli, 10) + "-" + strconv.FormatUint(n%perMilli, 10)
}

// A note is written with a hold, for Inspect: "owner meta fence", where meta is in the
// form of a URL's query, and the fence as the counter gave it. A hold that was acquired again has
// its first fence too, behind a comma. The fence is missing without scripts.
//
// In the string layout the note is the lock's value. Elsewhere it has a key of its own, and a
// plus before it.

// lastMeta caches how the metadata of the last request are written: nearly always
// the next request has the same map, which no caller changes.
type lastMeta struct{ atomic.Pointer[encodedMeta] }

type encodedMeta struct {
	meta map[string]string // kept, so that no other map can be in its place
	text string
}

// noteStart returns the part of a note that is known before the fence is.
func (l *lastMeta) noteStart(owner string, meta map[string]string) string {
	return owner + " " + l.encode(meta) + " "
}

func (l *lastMeta) encode(meta map[string]string) string {
	if e := l.Load(); e != nil && reflect.ValueOf(e.meta).Pointer() == reflect.ValueOf(meta).Pointer() {
		return e.text
	}
	text := encodeMeta(meta)
	l.Store(&encodedMeta{meta, text})
	return text
}

func encodeMeta(meta map[string]string) string {
	var b strings.Builder
	for i, key := range slices.Sorted(maps.Keys(meta)) {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(key))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(meta[key]))
	}
	return b.String()
}

// millis returns a TTL as Redis wants it.
func millis(d time.Duration) string { return strconv.FormatInt(ceilMillis(d), 10) }

// ceilMillis returns d in milliseconds, rounded up.
func ceilMillis(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// bit is a bool as scripts read it.
func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func text(v any) string   { s, _ := v.(string); return s }
func integer(v any) int64 { n, _ := v.(int64); return n }

// texts returns the strings of a list.
func texts(v any) []string {
	list, _ := v.([]any)
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = text(w)
	}
	return words
}

var errAnswer = errors.New("unexpected answer")
