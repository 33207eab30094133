package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/distlock/distlock/driver"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// probe returns when one of the servers has answered that it has a leader. If none does,
// the error says of each what is wrong with it. A client would try again and again, and
// say in the end that time is up.
func (t *urlConfig) probe(ctx context.Context) error {
	anybody := t.withoutLogin()
	anybody.timeout *= 2 // let ctx be what ends
	client, err := clientv3.New(anybody.config(ctx))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan error, len(t.addrs))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	for i, endpoint := range t.endpoints() {
		asking.Go(func() {
			err := t.probeServer(ctx, client, endpoint)
			if err != nil {
				err = fmt.Errorf("%s: %w", t.addrs[i], err)
			}
			answers <- err
		})
	}
	return firstSuccess(answers, len(t.addrs))
}

// firstSuccess returns nil as soon as one answer is, an answer that is final, or else all.
func firstSuccess(answers <-chan error, n int) (all error) {
	for range n {
		switch err := <-answers; {
		case err == nil || driver.Final(err):
			return err
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// probeServer returns nil once the server has a leader. An election takes about a second.
func (t *urlConfig) probeServer(ctx context.Context, client *clientv3.Client, endpoint string) error {
	conn, err := client.Dial(endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = t.checkStatus(ctx, conn)
	for errors.Is(err, errNoLeader) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		if again := t.checkStatus(ctx, conn); ctx.Err() == nil {
			err = again
		}
	}
	return err
}

var errNoLeader = errors.New("it has no leader: a majority of the members is down or cut off")

// checkStatus asks a server once whether it is of use.
func (t *urlConfig) checkStatus(ctx context.Context, conn *grpc.ClientConn) error {
	answer, err := etcdserverpb.NewMaintenanceClient(conn).Status(ctx, &etcdserverpb.StatusRequest{})
	switch code := status.Code(err); {
	case code == codes.InvalidArgument || code == codes.PermissionDenied || code == codes.Unauthenticated:
		return nil // newer servers tell nobody who has not logged in, which comes later
	case err != nil:
		return t.readableError(ctx, err)
	case tooOld(answer.Version):
		return fmt.Errorf("%w: the server is etcd %s: want %s or later", driver.ErrInvalid, answer.Version, minVersion)
	case answer.Leader == 0:
		return errNoLeader
	}
	return nil
}

// readableError puts what gRPC says of a connection into words for people.
func (t *urlConfig) readableError(ctx context.Context, err error) error {
	s, _ := status.FromError(err)
	text := strings.TrimPrefix(s.Message(), "connection error: desc = ")
	if plain, err := strconv.Unquote(text); err == nil {
		text = plain
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "transport: "), "Error while dialing: ")
	if ctx.Err() != nil {
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
	return errors.New(text + t.hint(s.Code(), text))
}

// hint is what the user may have to change if a server answers so.
func (t *urlConfig) hint(code codes.Code, text string) string {
	ends := func(how ...string) bool {
		return slices.ContainsFunc(how, func(h string) bool { return strings.HasSuffix(text, h) })
	}
	switch secure := t.tls != nil; {
	case code == codes.Unimplemented:
		return ": this is no etcd server, or an old one"
	case secure && strings.Contains(text, "handshake failed") && ends("EOF", "connection reset by peer", "a TLS handshake"):
		return "; does the server speak TLS?"
	case secure && ends("bad certificate", "certificate required", "broken pipe", "connection reset by peer"):
		return "; does the server want a certificate of yours, or another: parameters cert and key?"
	case !secure && ends("EOF", "broken pipe", "connection reset by peer"):
		return "; does the server want TLS, as in etcds://?"
	case strings.Contains(text, "server preface"):
		return ": this is no etcd server"
	}
	return ""
}

// minVersion is the first version that lets a client name its watches and ask how far they are.
const minVersion = "3.4"

func tooOld(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 {
		return false
	}
	return major < 3 || major == 3 && minor < 4
}
