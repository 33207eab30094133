package served

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
	"github.com/distlock/distlock/server"
)

// guarded is a server with a list of who may do what.
type guarded struct {
	t    testing.TB
	file string // the list
	host string
}

const secret = "0123456789abcdef"

// allow makes a list with one client, which has the secret token.
func (g *guarded) allow(token, rights string) {
	hash := sha256.Sum256([]byte(token))
	next := g.file + ".next"
	err := os.WriteFile(next, []byte("ci sha256:"+hex.EncodeToString(hash[:])+" "+rights+" *\n"), 0o600)
	expect.OK(g.t, errors.Join(err, os.Rename(next, g.file)))
}

func guard(t testing.TB, b driver.Backend) *guarded {
	t.Helper()
	g := &guarded{t: t, file: filepath.Join(t.TempDir(), "tokens")}
	g.allow(secret, "lock,see,ask,break")
	access := must.Get(server.OpenAccess(g.file, func(err error) { t.Error(err) }))(t)
	s := must.Get(server.New(b, server.Options{Access: access}))(t)
	srv := httptest.NewServer(http.Handler(s))
	t.Cleanup(srv.Close)
	g.host = strings.TrimPrefix(srv.URL, "http://")
	return g
}

// A token that is withdrawn, and one that loses its rights, while a client runs: nothing ends for good.
func TestRefusedByTheServer(t *testing.T) {
	t.Parallel()
	for what, withdraw := range map[string]func(*guarded){
		"token":  func(g *guarded) { g.allow("another token", "lock") },
		"rights": func(g *guarded) { g.allow(secret, "see") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				store := memlock.NewStore().Connect()
				t.Cleanup(func() { store.Close() })
				g := guard(t, store)
				probe := open(t, "http://:"+secret+"@"+g.host+patient)
				return drivertest.Harness{
					Open: func(ctx context.Context) (driver.Backend, error) {
						b, err := driver.Open(ctx, "http://:"+secret+"@"+g.host+patient)
						if err != nil {
							return nil, err
						}
						r := request("let in " + driver.NewOwner()) // only then a right can be withdrawn, and not be missing
						_, err = b.Acquire(ctx, r)
						return b, errors.Join(err, b.Release(ctx, r.Hold))
					},
					Withdraw: func() (restore func()) {
						mustAcquire(t, probe, request("let in "+driver.NewOwner()))
						withdraw(g)
						eventually(t, "the server has read its list", func() bool {
							_, err := probe.Acquire(t.Context(), request("probe "+driver.NewOwner()))
							return errors.Is(err, driver.ErrUnsent)
						})
						return func() { g.allow(secret, "lock,see,ask,break") }
					},
				}
			})
		})
	}
}

// A server whose Redis refuses its user, by its rights or its login.
func TestRefusedByTheStore(t *testing.T) {
	t.Parallel()
	for what, rules := range map[string]struct{ without, with []string }{
		"rights": {[]string{"resetkeys", "-@all", "+ping", "+hello", "+auth", "+client"}, []string{"~*", "+@all"}},
		"login":  {[]string{"off", "resetpass", ">another"}, []string{"on", "resetpass", ">pw"}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := testserver.SharedRedis(t)
			drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
				user := "u" + driver.NewOwner()
				set := func(rules ...string) {
					expect.OK(t, expect.Err(srv.Do(append([]string{"ACL", "SETUSER", user}, rules...)...)))
				}
				set("on", ">pw", "~*", "&*", "+@all")
				t.Cleanup(func() { srv.Do("ACL", "DELUSER", user) })
				address := url.URL{Scheme: "redis", User: url.UserPassword(user, "pw"), Host: srv.Addr(), RawQuery: "prefix=" + user + ":"}
				servers := []*process{
					start(t, func() driver.Backend { return open(t, address.String()) }),
					start(t, func() driver.Backend { return open(t, address.String()) }),
				}
				return drivertest.Harness{
					Open: func(ctx context.Context) (driver.Backend, error) {
						return driver.Open(ctx, "http://"+servers[0].addr+","+servers[1].addr+patient)
					},
					Withdraw: func() (restore func()) {
						set(rules.without...)
						srv.Do("CLIENT", "KILL", "USER", user)
						return func() { set(rules.with...) }
					},
				}
			})
		})
	}
}

// A client whose token is exchanged asks for the next one, and only Open is ErrInvalid for a wrong one.
func TestTokenIsExchanged(t *testing.T) {
	t.Parallel()
	store := memlock.NewStore().Connect()
	defer store.Close()
	g := guard(t, store)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		must.OK(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	}
	write("wrong")
	address := "http://" + g.host + patient + "&password_file=" + url.QueryEscape(file)
	expect.Be(t, expect.Err(driver.Open(t.Context(), address)), driver.ErrInvalid, "a wrong token at Open")
	write(secret)
	b := open(t, address)
	r := request("lock")
	mustAcquire(t, b, r)
	g.allow("next", "lock")
	eventually(t, "the old token is refused", func() bool {
		err := b.Renew(t.Context(), []driver.Hold{r.Hold})[0]
		if err != nil && (driver.Final(err) || errors.Is(err, driver.ErrLost) || !errors.Is(err, driver.ErrUnsent)) {
			t.Fatalf("a refused token: %v", err)
		}
		return err != nil
	})
	write("next")
	expect.OK(t, b.Renew(t.Context(), []driver.Hold{r.Hold})[0], "with the next token")
	expect.OK(t, b.Release(t.Context(), r.Hold), "with the next token")
}
