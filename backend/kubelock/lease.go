package kubelock

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/record"
)

// The annotations of a Lease.
const (
	nameNote = "distlock/name" // of a lock whose Lease has another one
	holdNote = "distlock/hold" // what a Lease has no field for: a note
)

// lease is a Lease as far as it matters here; an update keeps what others have written into it.
type lease struct {
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`

	read time.Time // by the clock of the server, or of a proxy; zero: not said
}

type metadata struct {
	Name            string            `json:"name,omitempty"`
	GenerateName    string            `json:"generateName,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	OwnerReferences json.RawMessage   `json:"ownerReferences,omitempty"`
	Finalizers      []string          `json:"finalizers,omitempty"`

	// These are the server's, and are not written.
	DeletionTimestamp *time.Time                 `json:"deletionTimestamp,omitempty"`
	ManagedFields     []struct{ Time time.Time } `json:"managedFields,omitempty"`
}

// written returns when the server wrote the Lease, by its clock. Zero: not known.
func (m *metadata) written() (last time.Time) {
	for _, f := range m.ManagedFields {
		if f.Time.After(last) {
			last = f.Time
		}
	}
	return last
}

// spec has the fields that client-go's leaderelection writes.
type spec struct {
	HolderIdentity       string    `json:"holderIdentity"`
	LeaseDurationSeconds int64     `json:"leaseDurationSeconds"`
	AcquireTime          microTime `json:"acquireTime"`
	RenewTime            microTime `json:"renewTime"`
	LeaseTransitions     int64     `json:"leaseTransitions"`
	Strategy             string    `json:"strategy,omitempty"`
	PreferredHolder      string    `json:"preferredHolder,omitempty"`
}

// microTime is an instant as Kubernetes writes it, to the microsecond.
type microTime struct{ time.Time }

// MarshalJSON writes the instant.
func (t microTime) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}

// note is what the spec has no field for. It says whom it is of, since client-go keeps the annotations of those before it.
type note struct {
	Holder string            `json:"holder,omitempty"`
	Renew  microTime         `json:"renew"`
	Token  string            `json:"token"`
	Fence  uint64            `json:"fence,omitempty"`
	Meta   map[string]string `json:"meta,omitempty"`
}

// record returns what the Lease says.
func (l *lease) record() (record.Record, error) {
	version, err := strconv.ParseUint(l.Metadata.ResourceVersion, 10, 63)
	if err != nil || version == 0 {
		return record.Record{}, fmt.Errorf("resourceVersion %q: want a positive number", l.Metadata.ResourceVersion)
	}
	r := record.Record{
		Version: l.Metadata.ResourceVersion, Stamp: version, Rest: l,
		Holder: l.Spec.HolderIdentity, TTL: time.Duration(l.Spec.LeaseDurationSeconds) * time.Second, Counter: uint64(max(0, l.Spec.LeaseTransitions)),
	}
	var n note
	err = json.Unmarshal([]byte(l.Metadata.Annotations[holdNote]), &n)
	if err != nil || n.Holder != r.Holder || !n.Renew.Equal(l.Spec.RenewTime.Time) {
		r.Foreign = r.Holder != ""
		return r, nil
	}
	r.Token, r.Fence, r.Meta = n.Token, n.Fence, n.Meta
	return r, nil
}

// written returns the Lease that says what r says, and replaces the one that r is of.
func written(name string, r record.Record, now time.Time) (*lease, error) {
	l := &lease{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: metadata{Name: names.Encode(name)}}
	before, replaces := r.Rest.(*lease)
	if replaces {
		l.Metadata, l.Spec = before.Metadata, before.Spec
		l.Metadata.DeletionTimestamp, l.Metadata.ManagedFields = nil, nil
	}
	l.Spec.HolderIdentity, l.Spec.LeaseTransitions = r.Holder, int64(r.Counter&math.MaxInt32)
	l.Spec.LeaseDurationSeconds = max(1, int64((r.TTL+time.Second-1)/time.Second))
	l.Spec.RenewTime = microTime{now.Truncate(time.Microsecond)}
	if !replaces || l.Spec.HolderIdentity != before.Spec.HolderIdentity || l.Spec.LeaseTransitions != before.Spec.LeaseTransitions {
		l.Spec.AcquireTime = l.Spec.RenewTime
	} else if next := before.Spec.RenewTime.Truncate(time.Second).Add(time.Second); next.After(now) {
		// client-go compares whole seconds: two renewals in one are one to it, and it would take the lock too early.
		l.Spec.RenewTime = microTime{next}
	}
	if replaces && before.Metadata.DeletionTimestamp != nil && r.Holder != "" && r.Holder != before.Spec.HolderIdentity {
		return nil, driver.Unsent(fmt.Errorf("the Lease %s is being deleted: it can be locked when its finalizers, %q, are removed", l.Metadata.Name, l.Metadata.Finalizers))
	}
	text, err := json.Marshal(note{r.Holder, l.Spec.RenewTime, r.Token, r.Fence, r.Meta})
	if size := len(name) + len(text); err == nil && size > mostNotes {
		err = fmt.Errorf("%w: %d bytes of name and metadata: want at most %d, since a Lease has them in annotations", driver.ErrInvalid, size, mostNotes)
	}
	notes := map[string]string{}
	maps.Copy(notes, l.Metadata.Annotations) // the ones before stay as they were read
	notes[holdNote] = string(text)
	if l.Metadata.Name != name {
		notes[nameNote] = name
	}
	l.Metadata.Annotations = notes
	return l, err
}

// mostNotes keeps annotations below the 256 KiB that Kubernetes takes, with room for those of others.
const mostNotes = 200 << 10

// lock returns the name of the lock that the Lease is of; "" if it is of none.
func (l *lease) lock() string {
	for _, name := range []string{l.Metadata.Annotations[nameNote], l.Metadata.Name} {
		if name != "" && names.Encode(name) == l.Metadata.Name {
			return name
		}
	}
	return ""
}
