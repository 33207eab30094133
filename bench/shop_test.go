package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// shop is the use that most locks have: read a number, change it, and write it back, in 4 processes.
var shop = scenario{
	name: onRedis + "/shop", at: onRedis, contenders: remoteOnRedis, measure: measureShop,
	title: "4 processes of 16 goroutines GET and SET one counter under the lock",
}

// token is a story of 4 processes whose callers all want one token, which one of them has to fetch.
var token = scenario{
	name: onRedis + "/token", at: onRedis, contenders: remoteOnRedis, measure: measureToken,
	title: "4 processes of 64 callers want one token, which takes 20 ms to refresh",
}

var errLost = errors.New("updates were lost")

func startCallers(r *rig, j job, task string, goroutines int) ([]*child, error) {
	j.Task, j.At, j.Addr, j.Goroutines, j.TTL, j.Time = task, r.at, r.Addr(), goroutines, ttl, r.time
	var children []*child
	for range processes {
		p, err := startChild(j)
		if err != nil {
			killAll(children)
			return nil, err
		}
		children = append(children, p)
	}
	return children, nil
}

func killAll(children []*child) {
	for _, p := range children {
		p.kill()
	}
}

func measureShop(r *rig, c contender) (figures, error) {
	j := job{Contender: c.name, Name: freshName()}
	children, err := startCallers(r, j, "shop", 16)
	if err != nil {
		return nil, err
	}
	defer killAll(children)
	all, each, err := letContend(children)
	if err != nil {
		return nil, err
	}
	data, err := newRueidis(r.Addr())
	if err != nil {
		return nil, err
	}
	defer data.Close()
	stored, err := counter(data, j.Name)
	if err != nil {
		return nil, err
	}
	if stored != all.total() {
		return nil, fmt.Errorf("%w: %d changes, and the counter says %d", errLost, all.total(), stored)
	}
	return append(contention(all, 0)[:4], // without the commands, since these are not only the lock's
		figure{"max/min process", spread(each)},
		figure{"max/min goroutine", spread(all.Each)}), nil
}

// dataKey is the key that the lock guards.
func dataKey(name string) string { return "data:" + name }

func counter(data rueidis.Client, name string) (int64, error) {
	n, err := data.Do(context.Background(), data.B().Get().Key(dataKey(name)).Build()).AsInt64()
	if rueidis.IsRedisNil(err) {
		return 0, nil
	}
	return n, err
}

func setCounter(data rueidis.Client, name string, n int64) error {
	return data.Do(context.Background(), data.B().Set().Key(dataKey(name)).Value(strconv.FormatInt(n, 10)).Build()).Error()
}

func shopInChild(j job, cl client, p *peer) error {
	data, err := newRueidis(j.Addr)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := warmUpAlone(cl); err != nil {
		return err
	}
	if err := p.ready(); err != nil {
		return err
	}
	t, err := during(j.Time, j.Goroutines, func(ctx context.Context, _ int, w *worker) error {
		m := cl.mutex(j.Name)
		for !w.over() {
			start := time.Now()
			if err := m.lock(ctx); err != nil {
				w.times.Max = max(w.times.Max, time.Since(start))
				return err
			}
			waited := time.Since(start)
			n, err := counter(data, j.Name)
			if err != nil {
				return err
			}
			if err := setCounter(data, j.Name, n+1); err != nil {
				return err
			}
			w.count(waited)
			if err := m.unlock(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.say(t)
}

// refreshTakes is how long it takes to fetch a token.
const refreshTakes = 20 * time.Millisecond

func measureToken(r *rig, c contender) (figures, error) {
	j := job{Contender: c.name, Name: freshName()}
	children, err := startCallers(r, j, "token", 64)
	if err != nil {
		return nil, err
	}
	defer killAll(children)
	start := time.Now()
	all, _, err := letContend(children)
	if err != nil {
		return nil, err
	}
	took := time.Since(start)
	if all.total() != 1 {
		return nil, fmt.Errorf("%w: the token was refreshed %d times", errTwo, all.total())
	}
	return figures{{"until all have it, ms", millis(took)}, {"refreshes", float64(all.total())}}, nil
}

func tokenInChild(j job, cl client, p *peer) error {
	data, err := newRueidis(j.Addr)
	if err != nil {
		return err
	}
	defer data.Close()
	if err := warmUpAlone(cl); err != nil {
		return err
	}
	if err := p.ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), handoffTimeout)
	defer cancel()
	refreshes := make([]int64, j.Goroutines)
	errs := make(chan error, j.Goroutines)
	start := time.Now()
	for g := range j.Goroutines {
		go func() { errs <- haveToken(ctx, j, cl.mutex(j.Name), data, &refreshes[g]) }()
	}
	for range j.Goroutines {
		if err := <-errs; err != nil {
			return err
		}
	}
	return p.say(&tally{Each: refreshes, Elapsed: time.Since(start)})
}

// haveToken returns when there is a token, and counts if it had to be refreshed.
func haveToken(ctx context.Context, j job, m mutex, data rueidis.Client, refreshed *int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := m.lock(ctx); err != nil {
		return err
	}
	n, err := counter(data, j.Name)
	if err == nil && n == 0 {
		time.Sleep(refreshTakes)
		*refreshed++
		err = setCounter(data, j.Name, 1)
	}
	return errors.Join(err, m.unlock())
}
