package s3lock

import (
	"context"
	"crypto/md5"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/wait"
)

// store is a record.Store in a bucket. The Version of a record is the ETag of its object.
type store struct {
	*client
	record.Pace
	name   string // for Caps
	prefix string // of keys: empty, or with a slash at its end
	hashes bool   // the ETag of an object is a hash of its content
	clock  bool   // the store says how old an object is
}

var _ record.Store = (*store)(nil)

// object is the content of an object: a record as JSON.
type object struct {
	Format  int               `json:"distlock"`
	Name    string            `json:"name"`
	Token   string            `json:"token"`
	Holder  string            `json:"holder,omitempty"`
	TTL     int64             `json:"ttl_ms,omitempty"`
	Fence   uint64            `json:"fence,omitempty"`
	Counter uint64            `json:"counter"`
	Meta    map[string]string `json:"meta,omitempty"`
}

const format = 1

// rereads is how often an object is read again whose ETag is not that of its content.
const rereads = 5

// Read gets the object of name.
func (s *store) Read(ctx context.Context, name string) (record.Record, error) {
	f, err := s.get(ctx, s.prefix+keys.Encode(name))
	if err == nil && f.Version != "" && f.name != name {
		err = fmt.Errorf("%w: the object of this lock is that of %s: two keys are one at this store", driver.ErrInvalid, driver.Quote(f.name))
	}
	if s.clock {
		f.Age = record.Age(f.written, f.read)
	}
	return f.Record, err
}

// found is an object that was read.
type found struct {
	record.Record
	name          string    // of its lock
	written, read time.Time // by the store's clock, or a proxy's, in seconds; zero: not said
}

// get reads an object. A Record without a Version: there is none, and its Counter is the store's clock, so that fences rise although
// objects of free locks are deleted.
func (s *store) get(ctx context.Context, key string) (f found, err error) {
	for range rereads {
		a, err := s.do(ctx, http.MethodGet, key, nil, nil, nil)
		if err != nil {
			return f, err
		}
		s.Answered(a.busy())
		f.read, err = http.ParseTime(a.header.Get("Date"))
		switch {
		case a.Code == "NoSuchKey":
			f.Counter = uint64(max(0, f.read.UnixMicro()))
			return f, err
		case !a.ok():
			return f, s.refused(http.MethodGet, a)
		}
		var o object
		if err := json.Unmarshal(a.body, &o); err != nil || o.Format != format {
			return f, fmt.Errorf("%w: the object %s was not written by this version of distlock", driver.ErrInvalid, driver.Quote(key))
		}
		if !s.torn(a) {
			f.name, f.Record = o.Name, record.Record{
				Version: a.header.Get("Etag"), Token: o.Token, Holder: o.Holder, TTL: time.Duration(o.TTL) * time.Millisecond,
				Fence: o.Fence, Counter: o.Counter, Meta: o.Meta,
			}
			f.written, _ = http.ParseTime(a.header.Get("Last-Modified"))
			return f, nil
		}
		if err := wait.Sleep(ctx, wait.Jitter(record.MinGap)); err != nil {
			return f, err
		}
	}
	return f, fmt.Errorf("the store at %s answers with the ETag of one version and the content of another", s.base.Redacted())
}

// torn reports whether an ETag that is a hash of the content, as nearly all are, is that of another content. Some gateways read the two
// one after the other, and a lock that is held would look free. With keys of a KMS an ETag is no hash.
func (s *store) torn(a answer) bool {
	kms := strings.HasPrefix(a.header.Get("X-Amz-Server-Side-Encryption"), "aws:")
	return s.hashes && !kms && a.header.Get("Etag") != hashOf(a.body)
}

// hashOf returns the ETag of a content where it is a hash.
func hashOf(body []byte) string {
	return fmt.Sprintf(`"%x"`, md5.Sum(body))
}

// Write puts the object. Its ETag may be a hash of the content, which the token makes unique.
func (s *store) Write(ctx context.Context, name string, r record.Record) (record.Written, error) {
	body, err := json.Marshal(object{
		Format: format, Name: name, Token: r.Token, Holder: r.Holder, TTL: int64((r.TTL + time.Millisecond - 1) / time.Millisecond),
		Fence: r.Fence, Counter: r.Counter, Meta: r.Meta,
	})
	if err != nil {
		return record.Written{}, driver.Unsent(err)
	}
	etag, err := s.put(ctx, s.prefix+keys.Encode(name), r.Version, body)
	if r.Version == "" && errors.Is(err, record.ErrConflict) {
		err = fmt.Errorf("%w (if there is no object, the store does not let a deleted one be made again)", err)
	}
	return record.Written{Version: etag}, err
}

// List lists keys, a thousand at a time, and gets the object of each, since a listing does not say which locks are free.
// It gets a few at a time, so hardly more than are yielded.
func (s *store) List(ctx context.Context, prefix string, yield func(name string, r record.Record) bool) error {
	query := url.Values{"list-type": {"2"}, "prefix": {s.prefix + keys.Prefix(prefix)}}
	for {
		var page struct {
			Contents              []struct{ Key string }
			IsTruncated           bool
			NextContinuationToken string
		}
		a, err := s.do(ctx, http.MethodGet, "", query, nil, nil)
		if err == nil && !a.ok() {
			err = s.refused(http.MethodGet, a)
		}
		if err == nil {
			err = xml.Unmarshal(a.body, &page)
		}
		if err != nil {
			return err
		}
		for some := range slices.Chunk(page.Contents, record.AtOnce) {
			objects, errs := make([]found, len(some)), make([]error, len(some))
			record.Parallel(len(some), func(i int) { objects[i], errs[i] = s.get(ctx, some[i].Key) })
			for i, f := range objects {
				switch err := errs[i]; {
				case err != nil && !errors.Is(err, driver.ErrInvalid):
					return err
				case err != nil, f.Version == "", s.prefix+keys.Encode(f.name) != some[i].Key, !strings.HasPrefix(f.name, prefix):
					// no lock: a probe, another program's object, one that was deleted meanwhile
				case !yield(f.name, f.Record):
					return nil
				}
			}
		}
		next := page.NextContinuationToken
		if page.IsTruncated && (next == "" || next == query.Get("continuation-token")) {
			return fmt.Errorf("the listing of %s is cut, and does not say where it goes on", s.base.Redacted())
		}
		if !page.IsTruncated {
			return nil
		}
		query.Set("continuation-token", next)
	}
}

// Close closes idle connections.
func (s *store) Close() error {
	s.http.CloseIdleConnections()
	return nil
}
