package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeSentinels are three sentinels, each with the port of the master that it names: "silent" for none, and "" for a connection that is
// refused.
type fakeSentinels struct {
	mu    sync.Mutex
	names []string
}

func (f *fakeSentinels) name(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names = names
}

func (f *fakeSentinels) named(n int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.names[n]
}

func (f *fakeSentinels) client() *Client {
	return NewSentinel(SentinelOptions{Addrs: []string{"a", "b", "c"}, Master: "m", DialSentinel: f.server, DialMaster: func(addr string) *Server { return NewServer(Options{Addr: addr}) }})
}

func (f *fakeSentinels) server(addr string) *Server {
	n := int(addr[0] - 'a')
	dial := answeredBy(func(int, []string) string {
		name := f.named(n)
		switch time.Sleep(time.Duration(n) * time.Millisecond); name {
		case "silent":
			return ""
		case "":
			return cut
		}
		return fmt.Sprintf("*2\r\n+host\r\n+%s", name)
	})
	return NewServer(Options{Addr: addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if f.named(n) == "" {
			return nil, errors.New("refused")
		}
		return dial(ctx, network, addr)
	}})
}

// A client goes to the master that most sentinels name, and stays there while there is no such majority.
func TestSentinelsThatDisagree(t *testing.T) {
	for _, c := range []struct {
		what        string
		first, then []string
		want        [3]string // at first, a second later, and half a minute later; "": an error
	}{
		{"all agree", []string{"1", "1", "1"}, []string{"1", "1", "1"}, [3]string{"1", "1", "1"}},
		{"one disagrees", []string{"2", "1", "1"}, []string{"2", "1", "1"}, [3]string{"1", "1", "1"}},
		{"one disagrees later", []string{"1", "1", "1"}, []string{"1", "2", "1"}, [3]string{"1", "1", "1"}},
		{"one is silent", []string{"silent", "1", "1"}, []string{"1", "silent", "1"}, [3]string{"1", "1", "1"}},
		{"one disagrees, one is silent", []string{"1", "1", "1"}, []string{"2", "silent", "1"}, [3]string{"1", "1", "1"}},
		{"one disagrees, one is refused, from the beginning", []string{"2", "", "1"}, []string{"2", "", "1"}, [3]string{"", "", ""}},
		{"one disagrees, and the others are silent for a moment", []string{"1", "1", "1"}, []string{"2", "silent", "silent"}, [3]string{"1", "1", "2"}},
		{"two disagree", []string{"1", "1", "1"}, []string{"2", "3", "1"}, [3]string{"1", "1", "1"}},
		{"a failover that one knows of", []string{"1", "1", "1"}, []string{"1", "2", "1"}, [3]string{"1", "1", "1"}},
		{"a failover that most know of", []string{"1", "1", "1"}, []string{"1", "2", "2"}, [3]string{"1", "2", "2"}},
		{"a failover with a sentinel less", []string{"1", "1", "1"}, []string{"", "2", "2"}, [3]string{"1", "2", "2"}},
		{"only one is left", []string{"1", "", "silent"}, []string{"1", "", "silent"}, [3]string{"1", "1", "1"}},
		{"none is left", []string{"1", "1", "1"}, []string{"", "silent", "silent"}, [3]string{"1", "1", "1"}},
		{"none is there", []string{"", "silent", "silent"}, []string{"", "", ""}, [3]string{"", "", ""}},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeSentinels{names: c.first}
				r := f.client()
				defer r.Close()
				at := func(i int) {
					t.Helper()
					s, err := r.At(t.Context(), "")
					got := ""
					if err == nil {
						got = s.o.Addr[len("host:"):]
					}
					if got != c.want[i] {
						t.Errorf("look %d: the master is %q, %v; want %q", i, got, err, c.want[i])
					}
				}
				at(0)
				f.name(c.then...)
				for range 20 { // each second's question, and its answer
					r.At(t.Context(), "")
					time.Sleep(100 * time.Millisecond)
				}
				at(1)
				for range 300 {
					if s, err := r.At(t.Context(), ""); err == nil && c.want[0] == c.want[2] && s.o.Addr != "host:"+c.want[0] {
						t.Fatalf("the client goes to %s", s.o.Addr)
					}
					time.Sleep(100 * time.Millisecond)
				}
				at(2)
			})
		})
	}
}
