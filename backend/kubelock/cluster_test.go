package kubelock

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/drivertest"
	"github.com/distlock/distlock/internal/record"
	"github.com/distlock/distlock/internal/record/recordtest"
	"github.com/distlock/distlock/internal/testkit/expect"
	"github.com/distlock/distlock/internal/testkit/faultproxy"
	"github.com/distlock/distlock/internal/testkit/locktest"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/rights"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// object is an object of Kubernetes.
type object map[string]any

// through returns the URL of a namespace behind a proxy.
func through(srv *testserver.KubeServer, p *faultproxy.Proxy, user, namespace string) string {
	return "kube:///" + namespace + "?timeout=2m&kubeconfig=" + url.QueryEscape(srv.Kubeconfig("https://"+p.Addr(), user))
}

// named is a backend with another name: that of the server behind a proxy.
type named struct {
	*Backend
	name string
}

func (n *named) Caps() driver.Caps {
	c := n.Backend.Caps()
	c.Name = n.name
	return c
}

func TestLongConformance(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedKube(t)
	namespace := srv.Namespace()
	var proxies faultproxy.Networks
	drivertest.Run(t, drivertest.Harness{
		TTL:   2 * time.Second,
		Holds: 40, // each renewal is a request
		Open: func(ctx context.Context) (driver.Backend, error) {
			p := faultproxy.New(t, srv.Addr())
			b, err := Open(ctx, through(srv, p, "admin", namespace))
			if err != nil {
				return nil, err
			}
			one := &named{b, namespace}
			proxies.Add(one, p)
			return one, nil
		},
		Cut: proxies.Cut, LoseAnswers: proxies.LoseAnswers,
	})
}

// allow gives a user verbs for Leases by a Role of the namespace, which takes effect at once.
func allow(t *testing.T, srv *testserver.KubeServer, user, namespace string, verbs []string) {
	t.Helper()
	path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace
	rule := object{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": verbs}
	srv.Do(http.MethodPost, path+"/roles", object{"metadata": object{"name": "locks"}, "rules": []object{rule}}, nil)
	bind(srv, user, namespace)
	may(t, srv, user, namespace, verbs[0], true)
}

func bind(srv *testserver.KubeServer, user, namespace string) {
	srv.Do(http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+namespace+"/rolebindings", object{
		"metadata": object{"name": "locks"}, "roleRef": object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "locks"},
		"subjects": []object{{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}},
	}, nil)
}

// may waits until a user may do something, or no longer may.
func may(t *testing.T, srv *testserver.KubeServer, user, namespace, verb string, want bool) {
	t.Helper()
	locktest.Eventually(t, fmt.Sprintf("%s may %s: %v", user, verb, want), func() bool {
		var review struct{ Status struct{ Allowed bool } }
		attributes := object{"group": "coordination.k8s.io", "resource": "leases", "verb": verb, "namespace": namespace}
		srv.Do(http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", object{"spec": object{"user": user, "resourceAttributes": attributes}}, &review)
		return review.Status.Allowed == want
	})
}

// The page's Role is enough, and each of its verbs is needed.
func TestLongRights(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedKube(t)
	_, verbs, _ := strings.Cut(rights.Example(t, "kubernetes.md", "kubectl create role ")[0], "--verb=")
	verbs, _, _ = strings.Cut(verbs, " ")
	rights.Try(t, strings.Split(verbs, ","), func(t *testing.T, verbs []string) string {
		namespace := srv.Namespace()
		allow(t, srv, "app", namespace, verbs)
		return srv.URLAs("app", namespace)
	})
}

// Rights that are taken away for a while end nothing.
func TestLongRefused(t *testing.T) {
	t.Parallel()
	drivertest.RunRefused(t, func(t *testing.T) drivertest.Harness {
		srv := testserver.SharedKube(t)
		p, namespace := faultproxy.New(t, srv.Addr()), srv.Namespace()
		allow(t, srv, "other", namespace, []string{"get", "create", "update", "watch", "list"})
		return drivertest.Harness{
			TTL: 2 * time.Second,
			Open: func(ctx context.Context) (driver.Backend, error) {
				b, err := Open(ctx, through(srv, p, "other", namespace))
				if err == nil {
					_, err = b.Acquire(ctx, request("it works "+driver.NewOwner())) // the first call may answer ErrInvalid
				}
				return b, err
			},
			Withdraw: func() func() {
				srv.Do(http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+namespace+"/rolebindings/locks", nil, nil)
				may(t, srv, "other", namespace, "get", false)
				p.Cut()
				return func() { bind(srv, "other", namespace) }
			},
		}
	})
}

// The API server crashes and starts again, its etcd forgets what watches would need, and the token is rotated: holders, waiters and
// candidates go on.
func TestLongOutlived(t *testing.T) {
	t.Parallel()
	srv := testserver.Kube(t)
	for name, change := range map[string]func(p *faultproxy.Proxy, programs *locktest.Programs){
		"restart": func(_ *faultproxy.Proxy, programs *locktest.Programs) {
			srv.Kill()
			programs.UnlockInVain()
			srv.Start()
		},
		"compaction": func(p *faultproxy.Proxy, _ *locktest.Programs) {
			p.Silence()
			other := open(t, srv.URL(srv.Namespace()))
			began := time.Now()
			for range 100 { // of which the silent watches hear nothing
				if time.Since(began) > 10*time.Second { // a hold that hears nothing either ends after a minute
					break
				}
				r := request("a")
				locktest.Acquire(t, other, r)
				locktest.Release(t, other, r)
			}
			srv.Compact()
			p.Pass()
			p.Cut()
		},
	} {
		p, namespace := faultproxy.New(t, srv.Addr()), srv.Namespace()
		t.Run(name, func(t *testing.T) {
			locktest.Outlive(t, true, func() driver.Backend { return open(t, through(srv, p, "admin", namespace)) }, func(programs *locktest.Programs) { change(p, programs) })
		})
	}
}

// A service account is deleted and made anew: its token ends, and the one that takes its place in the file goes on.
func TestLongTokenEnds(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedKube(t)
	namespace := srv.Namespace()
	accounts := "/api/v1/namespaces/" + namespace + "/serviceaccounts"
	create := func() string {
		var answer struct{ Status struct{ Token string } }
		srv.Do(http.MethodPost, accounts, object{"metadata": object{"name": "app"}}, nil)
		srv.Do(http.MethodPost, accounts+"/app/token", object{"spec": object{"expirationSeconds": 600}}, &answer)
		return answer.Status.Token
	}
	user := "system:serviceaccount:" + namespace + ":app"
	allow(t, srv, user, namespace, []string{"get", "create", "update", "watch"})
	file := writeFile(t, "token", create())
	config := writeFile(t, "config", fmt.Sprintf("contexts: [{context: {cluster: k, user: u}}]\nclusters: [{name: k, cluster: {server: '%s', certificate-authority: '%s'}}]\nusers: [{name: u, user: {tokenFile: '%s'}}]", srv.Server(), srv.CA(), file))
	b := open(t, "kube:///"+namespace+"?kubeconfig="+url.QueryEscape(config))
	r := request("a")
	locktest.Acquire(t, b, r)
	srv.Do(http.MethodDelete, accounts+"/app", nil, nil)
	renew := func() error { return b.Renew(t.Context(), []driver.Hold{r.Hold})[0] }
	locktest.Eventually(t, "the token has ended", func() bool { return renew() != nil }) // the server remembers it for ten seconds
	locktest.Fails(t, "with the token that has ended", renew(), false, "401", "login")
	must.OK(t, os.WriteFile(file, []byte(create()), 0o600))
	locktest.Eventually(t, "the new token goes on", func() bool { return renew() == nil })
	locktest.Release(t, b, r)
}

var holdsFlag = flag.Int("storm.holds", 1_000, "holds of the storm on an API server")

// Requests and answers are lost and late, and processes die, while clocks of hosts are an hour apart.
func TestLongStorm(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedKube(t)
	namespace := srv.Namespace()
	holds := *holdsFlag
	var nets []*recordtest.Faults
	storm := &recordtest.Storm{
		Clients: 150, Names: 100, Holds: holds, TTL: time.Second, Seed: uint64(time.Now().UnixNano()),
		Open: func(client int, now func() time.Time) driver.Backend {
			b := open(t, srv.URL(namespace))
			b.leases.now = func() time.Time { return time.Now().Add(time.Duration(client%3-1) * time.Hour) }
			net := recordtest.NewFaults(b.leases, uint64(client))
			net.Delay, net.Late, net.Rate = 4*time.Millisecond, 2*time.Second, 0.1
			nets = append(nets, net)
			return record.New(net, b.Caps()).WithClock(now)
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(holds)*400*time.Millisecond)
	defer cancel()
	saw := storm.Run(ctx)
	for _, net := range nets {
		net.Wait()
	}
	saw.Judge(t, holds/recordtest.Few)
}

// A holder and a waiter whose clocks are an hour apart: the lock is free a TTL after the holder has died, and not before.
func TestLongClocksApart(t *testing.T) {
	t.Parallel()
	srv := testserver.SharedKube(t)
	url := srv.URL(srv.Namespace())
	for _, apart := range []time.Duration{time.Hour, -time.Hour} {
		holder, waiter := open(t, url), open(t, url)
		holder.leases.now = func() time.Time { return time.Now().Add(apart) }
		r, next := request(fmt.Sprint(apart)), request(fmt.Sprint(apart))
		r.TTL = 3 * time.Second
		locktest.Acquire(t, holder, r)
		began := time.Now()
		must.OK(t, holder.Renew(t.Context(), []driver.Hold{r.Hold})[0])
		for {
			_, err := waiter.Acquire(t.Context(), next)
			if err == nil {
				break
			}
			must.Be(t, err, driver.ErrHeld)
			time.Sleep(10 * time.Millisecond)
		}
		if after := time.Since(began); after < r.TTL {
			t.Errorf("clocks %v apart: free after %v", apart, after)
		}
		expect.Be(t, holder.Renew(t.Context(), []driver.Hold{r.Hold})[0], driver.ErrLost, "the holder")
	}
}
