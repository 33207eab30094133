package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// local is one lock for many goroutines of one process: the cost of a hand-off between them.
func local(waiters int) scenario {
	return scenario{
		name: onRedis + "/local/" + strconv.Itoa(waiters), at: onRedis, contenders: []contender{channelMutex, distlockDefault},
		title: fmt.Sprintf("One lock, one process, %d goroutines that wait for it", waiters),
		big:   waiters > 1000,
		measure: func(r *rig, c contender) (figures, error) {
			f, err := measureOneLock(r, c, waiters)
			if err != nil {
				return nil, err
			}
			rate, _ := f.get("acq/s")
			return append(figures{{"µs/hand-off", 1e6 / rate}}, f[:4]...), nil
		},
	}
}

// channelMutex is the least that a hand-off between goroutines costs. It locks nothing outside the process.
var channelMutex = contender{name: "a channel, without a server", open: func(string, time.Duration) (client, error) {
	return &channelClient{}, nil
}}

type channelClient struct{ held sync.Map }

func (c *channelClient) mutex(name string) mutex {
	held, _ := c.held.LoadOrStore(name, make(channelLock, 1))
	return held.(channelLock)
}

func (c *channelClient) close() {}

type channelLock chan struct{}

func (c channelLock) lock(ctx context.Context) error {
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c channelLock) unlock() error {
	<-c
	return nil
}
