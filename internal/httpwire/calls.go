package httpwire

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
)

// encoding/json took a third of the processor time of a call. The functions below write and read what is usual, as it does,
// and leave the rest to it: texts with escapes, and all that is wrong.

// MetaWriter writes the meta of requests. It writes the same text for the same map as before, which nobody may change. It
// is safe for concurrent use.
type MetaWriter struct{ last atomic.Pointer[writtenMeta] }

type writtenMeta struct {
	meta map[string]string
	text []byte
}

func (m *MetaWriter) text(meta map[string]string) []byte {
	last := m.last.Load()
	if last == nil || reflect.ValueOf(last.meta).Pointer() != reflect.ValueOf(meta).Pointer() {
		text, _ := json.Marshal(meta)
		last = &writtenMeta{meta, text}
		m.last.Store(last)
	}
	return last.text
}

// Request returns r as json.Marshal encodes it.
func (m *MetaWriter) Request(r *Request) []byte {
	b := appendHold(append(make([]byte, 0, 256+len(r.Name)), '{'), &r.Hold)
	b = appendInt(b, `,"limit":`, int64(r.Limit))
	b = appendFlag(b, `,"fixed":true`, r.Fixed)
	b = appendFlag(b, `,"queue":true`, r.Queue)
	b = appendFence(b, `,"fences":"`, r.Fences)
	if len(r.Meta) > 0 {
		b = append(append(b, `,"meta":`...), m.text(r.Meta)...)
	}
	b = appendFlag(b, `,"revocable":true`, r.Revocable)
	b = appendInt(b, `,"min_hold_ms":`, r.MinHold)
	return append(appendInt(b, `,"wait_ms":`, r.Wait), '}')
}

// WriteHold returns h as json.Marshal encodes it.
func WriteHold(h *Hold) []byte {
	return append(appendHold(append(make([]byte, 0, 128+len(h.Name)), '{'), h), '}')
}

func appendHold(b []byte, h *Hold) []byte {
	b = appendText(append(b, `"name":`...), h.Name)
	b = appendText(append(b, `,"owner":`...), h.Owner)
	if h.Mode != 0 {
		b = appendText(append(b, `,"mode":`...), h.Mode.String())
	}
	b = appendInt(b, `,"ttl_ms":`, h.TTL)
	b = appendFence(b, `,"floor":"`, h.Floor)
	return appendFence(b, `,"fence":"`, h.Fence)
}

// AppendCalled appends c as json.Marshal encodes it.
func AppendCalled(b []byte, c *Called) []byte {
	if c.Problem != nil {
		text, _ := json.Marshal(c) // it can always be encoded
		return append(b, text...)
	}
	b = strconv.AppendUint(append(b, `{"index":`...), c.Index, 10)
	b = appendText(append(b, `,"outcome":`...), string(c.Outcome))
	if g := c.Grant; g != nil {
		b = strconv.AppendUint(append(b, `,"grant":{"fence":"`...), g.Fence, 10)
		b = strconv.AppendUint(append(b, `","fences":"`...), g.Fences, 10)
		b = strconv.AppendInt(append(b, `","ttl_ms":`...), g.TTL, 10)
		b = append(strconv.AppendInt(append(b, `,"waited_ms":`...), g.Waited, 10), '}')
	}
	return append(b, '}')
}

func appendInt(b []byte, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendInt(append(b, key...), n, 10)
}

func appendFence(b []byte, key string, n uint64) []byte {
	if n == 0 {
		return b
	}
	return append(strconv.AppendUint(append(b, key...), n, 10), '"')
}

func appendFlag(b []byte, text string, set bool) []byte {
	if !set {
		return b
	}
	return append(b, text...)
}

func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, _ := json.Marshal(s)
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// MetaReader reads the meta of requests. It returns the same map for the same text as before, so nobody may change it.
type MetaReader struct {
	text []byte
	meta map[string]string
}

// ReadCall reads a Call from UTF-8, unless it has something unusual or wrong. Then it returns false.
func (m *MetaReader) ReadCall(text []byte) (c Call, ok bool) {
	r := &reader{rest: text, meta: m}
	r.object(func(key []byte) bool {
		switch string(key) {
		case "index":
			c.Index = r.uint()
		case "acquire":
			c.Acquire = &Request{}
			r.object(func(key []byte) bool { return r.request(c.Acquire, key) })
		case "release":
			c.Release = &Hold{}
			r.object(func(key []byte) bool { return r.hold(c.Release, key) })
		case "leave":
			c.Leave = r.yes()
		default:
			return false
		}
		return true
	})
	return c, !r.bad && len(r.rest) == 0
}

// ReadCalled reads a Called that is ok, unless it has something unusual. Then it returns false.
func ReadCalled(text []byte) (c Called, ok bool) {
	r := &reader{rest: text}
	r.object(func(key []byte) bool {
		switch string(key) {
		case "index":
			c.Index = r.uint()
		case "outcome":
			c.Outcome = OK
			return string(r.text()) == string(OK)
		case "grant":
			c.Grant = &Grant{}
			r.object(func(key []byte) bool {
				switch string(key) {
				case "fence":
					c.Grant.Fence = r.quoted()
				case "fences":
					c.Grant.Fences = r.quoted()
				case "ttl_ms":
					c.Grant.TTL = r.int()
				case "waited_ms":
					c.Grant.Waited = r.int()
				default:
					return false
				}
				return true
			})
		default:
			return false
		}
		return true
	})
	return c, !r.bad && len(r.rest) == 0 && c.Outcome == OK
}

// reader reads JSON without white space and escapes.
type reader struct {
	rest []byte
	meta *MetaReader
	bad  bool // it has found something else
}

// object reads an object. value reads the value of a key, and returns false for one that it does not know.
func (r *reader) object(value func(key []byte) bool) {
	r.want('{')
	var keys [16][]byte
	for n := 0; !r.bad; n++ {
		key := r.text()
		twice := func(k []byte) bool { return string(k) == string(key) }
		if r.want(':'); r.bad || n == len(keys) || slices.ContainsFunc(keys[:n], twice) || !value(key) {
			r.bad = true
			return
		}
		keys[n] = key
		if len(r.rest) > 0 && r.rest[0] == '}' {
			r.rest = r.rest[1:]
			return
		}
		r.want(',')
	}
}

func (r *reader) request(q *Request, key []byte) bool {
	switch string(key) {
	case "limit":
		n := r.int()
		q.Limit = int(n)
		return int64(q.Limit) == n
	case "fixed":
		q.Fixed = r.yes()
	case "queue":
		q.Queue = r.yes()
	case "fences":
		q.Fences = r.quoted()
	case "meta":
		q.Meta = r.strings()
	case "revocable":
		q.Revocable = r.yes()
	case "wait_ms":
		q.Wait = r.int()
	default:
		return r.hold(&q.Hold, key)
	}
	return true
}

func (r *reader) hold(h *Hold, key []byte) bool {
	switch string(key) {
	case "name":
		h.Name = string(r.text())
	case "owner":
		h.Owner = string(r.text())
	case "mode":
		return h.Mode.UnmarshalText(r.text()) == nil
	case "ttl_ms":
		h.TTL = r.int()
	case "floor":
		h.Floor = r.quoted()
	case "fence":
		h.Fence = r.quoted()
	default:
		return false
	}
	return true
}

// want reads a byte.
func (r *reader) want(c byte) {
	if r.bad = r.bad || len(r.rest) == 0 || r.rest[0] != c; !r.bad {
		r.rest = r.rest[1:]
	}
}

// text reads a text without escapes.
func (r *reader) text() []byte {
	r.want('"')
	end := bytes.IndexByte(r.rest, '"')
	if r.bad = r.bad || end < 0; r.bad {
		return nil
	}
	text := r.rest[:end]
	for _, c := range text {
		r.bad = r.bad || c == '\\' || c < ' '
	}
	r.rest = r.rest[end+1:]
	return text
}

// uint reads a number that is not very large.
func (r *reader) uint() (n uint64) {
	digits := 0
	for digits < len(r.rest) && r.rest[digits] >= '0' && r.rest[digits] <= '9' {
		n = 10*n + uint64(r.rest[digits]-'0')
		digits++
	}
	r.bad = r.bad || digits == 0 || digits > 19 || digits > 1 && r.rest[0] == '0'
	r.rest = r.rest[digits:]
	return n
}

func (r *reader) int() int64 {
	n := int64(r.uint())
	r.bad = r.bad || n < 0
	return n
}

func (r *reader) quoted() uint64 {
	r.want('"')
	n := r.uint()
	r.want('"')
	return n
}

// yes reads true.
func (r *reader) yes() bool {
	rest, ok := bytes.CutPrefix(r.rest, []byte("true"))
	r.rest, r.bad = rest, r.bad || !ok
	return ok
}

// strings reads the meta of a request.
func (r *reader) strings() map[string]string {
	if last := r.meta.text; len(last) > 0 && bytes.HasPrefix(r.rest, last) {
		r.rest = r.rest[len(last):]
		return r.meta.meta
	}
	all := r.rest
	meta := map[string]string{}
	r.want('{')
	for !r.bad {
		key := string(r.text())
		r.want(':')
		value := string(r.text())
		_, twice := meta[key]
		meta[key] = value
		if r.bad = r.bad || twice; !r.bad && len(r.rest) > 0 && r.rest[0] == '}' {
			r.rest = r.rest[1:]
			r.meta.text, r.meta.meta = append(r.meta.text[:0], all[:len(all)-len(r.rest)]...), meta
			return meta
		}
		r.want(',')
	}
	return nil
}
