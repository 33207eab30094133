package zk

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// A server that refuses the login refuses the connection. The session lives on, and no request is sent before the login is accepted.
func TestRefusedLogin(t *testing.T) {
	t.Parallel()
	for _, code := range []int32{-115, -124} {
		var refuse atomic.Bool
		var unheard sync.Map // opcodes
		f := &fake{answer: func(n int, _ int32, o opcode) message {
			switch {
			case o == opAuth && refuse.Load():
				return message{code: code}
			case o != opAuth && refuse.Load():
				unheard.Store(o, true)
			case o == opDelete:
				refuse.Store(true)
				return message{raw: []byte("the connection ends with this")}
			}
			return good(o)
		}}
		cfg := Config{Servers: []string{startFake(t, f)}, Login: as("ann", "s3cret"), Timeout: long}
		c := dial(t, cfg)
		expect.Be(t, c.Delete(soon(t), "/a", -1), ErrConnectionLoss, "delete")
		for range 3 {
			if _, _, err := c.Get(soon(t), "/a"); !errors.Is(err, ErrAuthFailed) || !errors.Is(err, ErrNotSent) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("get: %v", err)
			}
		}
		if _, err := Dial(soon(t), cfg); !errors.Is(err, ErrAuthFailed) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("dial: %v", err)
		}
		unheard.Range(func(o, _ any) bool {
			if o != opCloseSession {
				t.Errorf("%v was sent before the login was accepted", o)
			}
			return true
		})
		refuse.Store(false)
		eventually(t, "the session goes on", func() bool {
			_, _, err := c.Get(soon(t), "/a")
			return err == nil
		})
		if c.Err() != nil {
			t.Errorf("the session is over: %v", c.Err())
		}
	}
}

// A call that ends while there is no connection says why there is none.
func TestCallSaysWhyThereIsNoConnection(t *testing.T) {
	t.Parallel()
	var fail atomic.Bool
	connect := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if fail.Load() {
			return nil, errors.New("the cable is cut")
		}
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	f := &fake{answer: func(_ int, _ int32, o opcode) message {
		if o == opDelete {
			return message{raw: []byte("the connection ends with this")}
		}
		return good(o)
	}}
	c := dial(t, Config{Servers: []string{startFake(t, f)}, Dial: connect, Timeout: long})
	fail.Store(true)
	c.Delete(soon(t), "/a", -1)
	eventually(t, "the reason is told", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := c.Set(ctx, "/a", nil, -1)
		return errors.Is(err, ErrNotSent) && strings.Contains(err.Error(), "the cable is cut")
	})
	fail.Store(false)
	expect.OK(t, expect.Err2(c.Get(soon(t), "/a")), "afterwards")
}

// A session is resumed with the logins that it had if a new one can't be read, or not in time: what holds a lock must not lose
// it because a vault is sealed.
func TestResumedWithEarlierLogins(t *testing.T) {
	t.Parallel()
	for what, sealed := range map[string]func(context.Context) error{
		"an error": func(context.Context) error { return errors.New("the vault is sealed") },
		"silence":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var fail atomic.Bool
			login := func(ctx context.Context) (string, string, error) {
				if fail.Load() {
					return "", "", sealed(ctx)
				}
				return "ann", "s3cret", nil
			}
			var known atomic.Int32
			f := &fake{answer: func(_ int, _ int32, o opcode) message {
				switch o {
				case opAuth:
					known.Add(1)
				case opDelete:
					return message{raw: []byte("the connection ends with this")}
				}
				return good(o)
			}}
			c := dial(t, Config{Servers: []string{startFake(t, f)}, Login: login, Timeout: long})
			fail.Store(true)
			c.Delete(soon(t), "/a", -1)
			if _, _, err := c.Get(soon(t), "/a"); err != nil || known.Load() != 2 {
				t.Errorf("%v, %d logins; want 2", err, known.Load())
			}
		})
	}
}

// A lock may live for months beside a password of each day: its nodes belong to the first one.
func TestManyPasswords(t *testing.T) {
	t.Parallel()
	var day, logins atomic.Int32
	login := func(context.Context) (string, string, error) { return "ann", strconv.Itoa(int(day.Add(1))), nil }
	f := &fake{answer: func(_ int, _ int32, o opcode) message {
		switch o {
		case opAuth:
			logins.Add(1)
		case opDelete:
			return message{raw: []byte("the connection ends with this")}
		}
		return good(o)
	}}
	c := dial(t, Config{Servers: []string{startFake(t, f)}, Login: login, Timeout: long})
	for range 5 {
		c.Delete(soon(t), "/a", -1)
		must.OK(t, expect.Err2(c.Get(soon(t), "/a")))
	}
	if n := logins.Load(); n != 1+2+3+4+5+6 {
		t.Errorf("%d logins; want all earlier ones on each connection", n)
	}
}

// A password that has changed is used after the first refusal, on the same connection. Nodes of the earlier one stay
// within reach, also on a later connection.
func TestPasswordChanges(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedZooKeeper(t).Addr()
	var password atomic.Value
	password.Store("old")
	c := dial(t, Config{Servers: []string{addr}, Timeout: long, Private: true, Login: func(context.Context) (string, string, error) {
		return "ann", password.Load().(string), nil
	}})
	dir := place(t, c)
	node(t, c, dir+"/old")
	password.Store("new")
	other := dial(t, Config{Servers: []string{addr}, Timeout: long, Private: true, Login: as("ann", "new")})
	theirs := place(t, other)
	eventually(t, "the new password is used", func() bool {
		_, _, err := c.Get(soon(t), theirs)
		if err != nil && !errors.Is(err, ErrNoAuth) {
			t.Fatal(err)
		}
		return err == nil
	})
	expect.OK(t, expect.Err2(c.Get(soon(t), dir+"/old")), "a node of the old password")
}

// The servers refuse one node of many: that concerns no other.
func TestCheckAllNamesWhatIsRefused(t *testing.T) {
	t.Parallel()
	c := shared(t)
	dir := place(t, c)
	node(t, c, dir+"/a")
	ann := dial(t, Config{Servers: c.cfg.Servers, Login: as("ann", "s3cret"), Private: true})
	node(t, ann, dir+"/b")
	if failed, err := c.CheckAll(soon(t), []string{dir + "/a", dir + "/b"}); failed != 1 || !errors.Is(err, ErrNoAuth) {
		t.Errorf("%d, %v", failed, err)
	}
}

// ZooKeeper 3.5 reports a session that has moved inside the results of a transaction.
func TestMovedSessionInATransaction(t *testing.T) {
	t.Parallel()
	var moved atomic.Int32
	f := &fake{answer: func(n int, _ int32, o opcode) message {
		if o == opMulti && n == 1 && moved.Load() == 1 {
			return message{body: multiErrors(codeMoved)}
		}
		if o == opMulti {
			return message{body: multiErrors(0)}
		}
		return good(o)
	}}
	c := at(t, startFake(t, f))
	moved.Store(1)
	if failed, err := c.CheckAll(soon(t), []string{"/a"}); failed != -1 || err != nil || f.conns.Load() != 2 {
		t.Errorf("%d, %v, on connection %d", failed, err, f.conns.Load())
	}
}

// multiErrors returns the body of a transaction with one part that has failed, or not (0).
func multiErrors(code int32) []byte {
	b := appendInt(appendBool(appendInt(nil, int32(multiError)), false), code)
	return appendMultiEnd(appendInt(b, code))
}

// What a server refuses for now concerns one request.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	var code atomic.Int32
	f := &fake{answer: func(_ int, _ int32, o opcode) message {
		if o == opCreate2 {
			return message{code: code.Load()}
		}
		return good(o)
	}}
	c := at(t, startFake(t, f))
	for refused, want := range map[int32]error{-102: ErrNoAuth, -125: ErrQuota, -127: ErrThrottled} {
		code.Store(refused)
		if _, _, err := c.Create(soon(t), "/a", nil, Ephemeral); !errors.Is(err, want) || errors.Is(err, ErrNotSent) {
			t.Errorf("%d: %v", refused, err)
		}
	}
	if c.Err() != nil || f.conns.Load() != 1 {
		t.Errorf("afterwards: %v, on connection %d", c.Err(), f.conns.Load())
	}
}
