package server

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/httpwire"
	"github.com/distlock/distlock/internal/netaddr"
)

// Right is something that an identity may do with locks.
type Right uint8

// The rights. Lock is to acquire, renew and release; See is to list and inspect; Ask is to request the release
// of a lock from its holder; Break is to unlock by force, and to see owners.
const (
	Lock Right = 1 << iota
	See
	Ask
	Break

	allRights = Lock | See | Ask | Break
)

var rightNames = map[string]Right{"lock": Lock, "see": See, "ask": Ask, "break": Break}

// String is the right's name in lower case.
func (r Right) String() string {
	for name, right := range rightNames {
		if r == right {
			return name
		}
	}
	return "several rights"
}

// Identity is a client of the server, and has its rights.
type Identity struct {
	Name   string // empty without Access, unless the client has a certificate
	grants []grant
}

type grant struct {
	prefix string
	rights Right
}

// noIdentity has no rights, fullIdentity has all.
var (
	noIdentity   = &Identity{}
	fullIdentity = &Identity{grants: []grant{{"", allRights}}}
)

// May reports whether the identity has a right for a lock.
func (i *Identity) May(r Right, name string) bool {
	return slices.ContainsFunc(i.grants, func(g grant) bool { return g.rights&r != 0 && strings.HasPrefix(name, g.prefix) })
}

// String names the identity for a message.
func (i *Identity) String() string { return cmp.Or(i.Name, "an anonymous client") }

// Access is a list of identities, which are known by a token or by a client certificate. It is safe for
// concurrent use, and reads its file again when that changes.
type Access struct {
	file    *netaddr.Files[*identities]
	onError func(error)

	mu      sync.Mutex
	checked time.Time
	known   *identities
}

// identities are those in a file. Those of a file that has changed are others.
type identities struct {
	byToken map[[sha256.Size]byte]*Identity
	byCert  map[string]*Identity
}

// maxAccess bounds the file, in bytes.
const maxAccess = 1 << 20

// OpenAccess reads a file of identities. Each line has four fields: a name; "sha256:" and the hash of a token in
// hex, or "cert:" and the common name or DNS name of a client certificate; the rights, such as lock,see; and the
// prefix of the names for which they are given, or *. An identity may have several lines. Empty lines and those
// that begin with # are comments.
//
// The file is read again within a second after it has changed. One that is wrong then is reported to onError,
// and the rights stay as they were.
func OpenAccess(path string, onError func(error)) (*Access, error) {
	file, err := netaddr.OpenFiles([]netaddr.File{{Name: "the file of tokens", Path: path}}, func(texts [][]byte) (*identities, error) {
		known, err := parseAccess(string(texts[0]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return known, nil
	})
	if err != nil {
		return nil, err
	}
	known, _ := file.Last()
	return &Access{file: file, onError: onError, checked: time.Now(), known: known}, nil
}

// CheckAccess returns an error if a file of identities with this text would be wrong.
func CheckAccess(text string) error {
	_, err := parseAccess(text)
	return err
}

func parseAccess(text string) (*identities, error) {
	if len(text) > maxAccess {
		return nil, fmt.Errorf("more than %d bytes", maxAccess)
	}
	known := &identities{map[[sha256.Size]byte]*Identity{}, map[string]*Identity{}}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := known.parse(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err) // without its text, which may be a token
		}
	}
	return known, nil
}

// parse adds the identity of a line.
func (i *identities) parse(line string) error {
	fields := strings.Fields(line)
	if len(fields) != 4 {
		return fmt.Errorf("%d fields: want four: name, sha256:HASH or cert:NAME, rights, prefix", len(fields))
	}
	g := grant{prefix: fields[3]}
	if g.prefix == "*" {
		g.prefix = ""
	}
	for _, name := range strings.Split(fields[2], ",") {
		right, ok := rightNames[name]
		if !ok {
			return fmt.Errorf("right %.20q: want some of lock,see,ask,break", name)
		}
		g.rights |= right
	}
	kind, value, _ := strings.Cut(fields[1], ":")
	var who *Identity
	switch hash, err := hex.DecodeString(value); {
	case kind == "cert" && value != "":
		who = entry(i.byCert, value)
	case kind == "sha256" && err == nil && len(hash) == sha256.Size:
		who = entry(i.byToken, [sha256.Size]byte(hash))
	default:
		return errors.New("the second field: want sha256: and 64 hex digits, the hash of a token, or cert: and a name")
	}
	if who.Name != "" && who.Name != fields[0] {
		return fmt.Errorf("%s and %s have the same token or certificate", who.Name, fields[0])
	}
	who.Name = fields[0]
	who.grants = append(who.grants, g)
	return nil
}

func entry[K comparable](m map[K]*Identity, k K) *Identity {
	if m[k] == nil {
		m[k] = &Identity{}
	}
	return m[k]
}

// now returns the identities. It reads the file again after a second. A nil a has none.
func (a *Access) now() *identities {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.checked) >= time.Second {
		a.checked = time.Now()
		a.known = a.file.Current(func(err error) {
			if a.onError != nil {
				a.onError(err)
			}
		})
	}
	return a.known
}

// cookie keeps the token of a person who uses the page.
const cookie = "distlock_token"

// identify returns who makes the request.
func (a *Access) identify(r *http.Request) (*Identity, error) { return a.now().identify(r) }

// identify returns who makes the request. A nil i admits every client, under the common name of its certificate if it has one.
func (i *identities) identify(r *http.Request) (*Identity, error) {
	certified := r.TLS != nil && len(r.TLS.VerifiedChains) > 0
	switch {
	case i == nil && certified:
		return &Identity{Name: r.TLS.PeerCertificates[0].Subject.CommonName, grants: fullIdentity.grants}, nil
	case i == nil:
		return fullIdentity, nil
	}
	if certified {
		if who := i.certified(r.TLS.PeerCertificates[0]); who != nil {
			return who, nil
		}
	}
	token, ok := bearer(r.Header.Get("Authorization"))
	if c, err := r.Cookie(cookie); !ok && err == nil {
		token, ok = c.Value, true
	}
	if !ok {
		return nil, problem(http.StatusUnauthorized, httpwire.Denied, "the server wants a token: Authorization: Bearer TOKEN")
	}
	if who := i.byToken[sha256.Sum256([]byte(token))]; who != nil {
		return who, nil
	}
	return nil, problem(http.StatusUnauthorized, httpwire.Denied, "the server doesn't know this token")
}

// bearer returns the token in a header of the scheme Bearer, whose name may be in any case.
func bearer(header string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

func (i *identities) certified(cert *x509.Certificate) *Identity {
	for _, name := range append([]string{cert.Subject.CommonName}, cert.DNSNames...) {
		if who := i.byCert[name]; who != nil {
			return who
		}
	}
	return nil
}

// HashToken returns the hash of a token as a file of identities has it.
func HashToken(token string) string {
	hash := sha256.Sum256([]byte(token))
	return hex.EncodeToString(hash[:])
}
