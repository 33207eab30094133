package redisconn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/distlock/distlock/driver"
)

// clusterTopology is the topology of a Redis Cluster: its servers say which of them has which
// slot.
type clusterTopology struct {
	seeds func(ctx context.Context) ([]string, error)
	dial  Dialer
	title string
}

// NewCluster returns the client of a Redis Cluster. seeds returns the servers to query first, and
// dial returns a server.
func NewCluster(title string, seeds func(ctx context.Context) ([]string, error), dial Dialer) Client {
	return newRouter(&clusterTopology{title: title, seeds: seeds, dial: dial})
}

func (c *clusterTopology) maxAge() time.Duration { return 0 }

func (c *clusterTopology) slotted() bool { return true }

func (c *clusterTopology) strict() bool { return true }

func (c *clusterTopology) name() string { return c.title }

func (c *clusterTopology) close() {}

func (c *clusterTopology) open(ctx context.Context, addr string) (Server, error) {
	return c.dial(ctx, addr)
}

func (c *clusterTopology) load(ctx context.Context, known []string, at Dialer) (slotTable, error) {
	if len(known) > 0 {
		// The seeds are queried only if these do not answer: finding them may take long.
		soon, cancel := context.WithTimeout(ctx, refreshTimeout/2)
		defer cancel()
		if t, err := c.queryOneOf(soon, known, at); err == nil {
			return t, nil
		}
	}
	seeds, err := c.seeds(ctx)
	if err != nil {
		return nil, err
	}
	return c.queryOneOf(ctx, seeds, at)
}

func (c *clusterTopology) queryOneOf(ctx context.Context, addrs []string, at Dialer) (slotTable, error) {
	return firstAnswer(ctx, shuffled(addrs), func(ctx context.Context, addr string) (slotTable, error) {
		s, err := at(ctx, addr)
		if err != nil {
			return nil, err
		}
		reply, err := s.Do(ctx, []string{"CLUSTER", "SLOTS"})
		if err != nil {
			return nil, noCluster(err)
		}
		t, err := readSlots(reply, addr)
		if err == nil && len(t) == 0 {
			err = errNoSlots // it may have left the cluster
		}
		return t, err
	})
}

// noCluster explains why a server did not return its slots.
func noCluster(err error) error {
	if re, is := AsReply(err); is && (re.UnknownCommand() || strings.Contains(re.Text, "cluster support disabled")) {
		return fmt.Errorf("%w: the server is not part of a Redis Cluster: want redis:// or redis+sentinel://", driver.ErrInvalid)
	}
	return Explain(err)
}

// readSlots reads the answer to CLUSTER SLOTS of the server at origin.
func readSlots(reply any, origin string) (slotTable, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, errUnexpected
	}
	var t slotTable
	for _, entry := range list {
		e, ok := entry.([]any)
		if !ok || len(e) < 3 {
			return nil, errUnexpected
		}
		owner, ok := e[2].([]any)
		if !ok || len(owner) < 2 {
			return nil, errUnexpected
		}
		t = append(t, slotRange{int(numberOf(e[0])), int(numberOf(e[1])), endpoint(textOf(owner[0]), numberOf(owner[1]), origin)})
	}
	slices.SortFunc(t, func(a, b slotRange) int { return a.first - b.first })
	return t, nil
}

// endpoint returns an address as a client can use it. A server that does not know its own name
// means the name by which it was reached. A server with TLS only may return port 0.
func endpoint(host string, port int64, origin string) string {
	sameHost, samePort, _ := net.SplitHostPort(origin)
	if host == "" || host == "?" {
		host = sameHost
	}
	if port == 0 {
		return net.JoinHostPort(host, samePort)
	}
	return net.JoinHostPort(host, strconv.FormatInt(port, 10))
}

func shuffled(list []string) []string {
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
	return list
}

// hedgeDelay is the time after which the next server is queried too.
const hedgeDelay = 300 * time.Millisecond

// firstAnswer queries one server after the other: the next one once a query has failed or takes
// long. It returns the first answer and does not wait for the other queries.
func firstAnswer[T any](ctx context.Context, addrs []string, ask func(ctx context.Context, addr string) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		value T
		err   error
	}
	results := make(chan result, len(addrs))
	var errs []error
	var none T
	for asked := 0; len(errs) < len(addrs); {
		var late <-chan time.Time
		if asked < len(addrs) {
			addr := addrs[asked]
			asked++
			go func() {
				value, err := ask(ctx, addr)
				results <- result{value, err}
			}()
			late = time.After(hedgeDelay)
		}
		select {
		case r := <-results:
			if r.err == nil {
				return r.value, nil
			}
			errs = append(errs, r.err)
		case <-late:
		case <-ctx.Done():
			return none, errors.Join(append(errs, ctx.Err())...)
		}
	}
	return none, mostTelling(errs)
}

// mostTelling returns the error that says most: a final one rather than a missing answer.
func mostTelling(errs []error) error {
	for _, err := range errs {
		if driver.Final(err) {
			return err
		}
	}
	return errors.Join(errs...)
}
