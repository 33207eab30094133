package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/distlock/distlock"
	_ "github.com/distlock/distlock/backend/kubelock"
	"github.com/distlock/distlock/internal/testkit/must"
	"github.com/distlock/distlock/internal/testkit/testserver"
)

// The same TTL on both sides.
const ttl = 3 * time.Second

const name = "controller"

// candidate competes for the leadership until ctx ends, and calls lead when it has it. A term ends with ctx, or with term.
type candidate func(ctx context.Context, lead func(term context.Context)) error

// where is a namespace of an API server.
type where struct{ server, kubeconfig, namespace string }

// distlocks is a candidate of distlock.
func (w where) distlocks(ctx context.Context, lead func(term context.Context)) error {
	c, err := distlock.Open(ctx, "kube:///"+w.namespace+"?timeout=1m&kubeconfig="+w.kubeconfig, &distlock.Options{TTL: ttl})
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Election(name).Lead(ctx, func(term context.Context) error {
		lead(term)
		return nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// clientGo is a candidate of client-go.
func (w where) clientGo(ctx context.Context, lead func(term context.Context)) error {
	config, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	identity := fmt.Sprintf("client-go_%d", time.Now().UnixNano())
	var term sync.Mutex
	e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: ttl, RenewDeadline: ttl * 2 / 3, RetryPeriod: ttl / 10, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { // in a goroutine
				term.Lock()
				defer term.Unlock()
				lead(ctx)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	for ctx.Err() == nil { // on a busy machine a term may be lost
		e.Run(ctx)
		func() { // waits for lead
			term.Lock()
			defer term.Unlock()
		}()
	}
	return nil
}

func (w where) sides() map[string]candidate {
	return map[string]candidate{"distlock": w.distlocks, "client-go": w.clientGo}
}

func newPlace(t *testing.T) where {
	srv := testserver.SharedKube(t)
	return where{srv.Server(), srv.Kubeconfig(srv.Server(), "admin"), srv.Namespace()}
}

// candidateVar makes the test program a candidate: SIDE KUBECONFIG NAMESPACE.
const candidateVar = "DISTLOCK_TEST_CANDIDATE"

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	if args := strings.Fields(os.Getenv(candidateVar)); len(args) == 3 {
		w := where{kubeconfig: args[1], namespace: args[2]}
		err := w.sides()[args[0]](context.Background(), func(term context.Context) {
			fmt.Println("leads")
			<-term.Done()
			fmt.Println("no longer leads")
			os.Exit(0)
		})
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(testserver.Run(m))
}

// process is a candidate in a process of its own.
type process struct {
	cmd   *exec.Cmd
	lines chan string
}

func (w where) start(t *testing.T, side string) *process {
	t.Helper()
	self := must.Get(os.Executable())(t)
	p := &process{exec.Command(self), make(chan string, 100)}
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", candidateVar, side, w.kubeconfig, w.namespace))
	p.cmd.Stderr = os.Stderr
	out := must.Get(p.cmd.StdoutPipe())(t)
	must.OK(t, testserver.Spawn(p.cmd))
	t.Cleanup(p.kill)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		close(p.lines)
	}()
	return p
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// says wants a line.
func (p *process) says(t *testing.T, want string) {
	t.Helper()
	select {
	case line := <-p.lines:
		must.Equal(t, line, want)
	case <-time.After(2 * time.Minute):
		t.Fatalf("nothing; want %q", want)
	}
}
