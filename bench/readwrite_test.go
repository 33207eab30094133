package bench

import (
	"context"
	"fmt"
	"time"
)

// rwWriters is how many clients of a read/write lock write.
const rwWriters = 2

// rwClient is a client with read/write locks.
type rwClient interface {
	shared(name string) mutex
	sole(name string) mutex
}

// readWrite is one read/write lock of clients that share nothing but the server.
func readWrite(name, at string, readers int, among []contender) scenario {
	return scenario{
		name: at + "/" + name, at: at, contenders: among,
		title: fmt.Sprintf("One read/write lock, %d clients that read and %d that write for 1 ms each", readers, rwWriters),
		measure: func(r *rig, c contender) (figures, error) {
			return measureReadWrite(r, c, readers+rwWriters)
		},
	}
}

func measureReadWrite(r *rig, c contender, n int) (figures, error) {
	clients, err := openMany(r, c, n)
	defer closeAll(clients)
	if err != nil {
		return nil, err
	}
	// What only waiters need is opened and prepared before.
	if _, _, err := competeReadWrite(clients, freshName(), time.Duration(n)*turnsTime(r.at)/4); err != nil {
		return nil, err
	}
	before, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	t, longestWrite, err := competeReadWrite(clients, freshName(), max(r.time, time.Duration(n)*turnsTime(r.at)))
	if err != nil {
		return nil, err
	}
	after, err := r.usage(c)
	if err != nil {
		return nil, err
	}
	total, writes := float64(t.total()), 0.
	for _, each := range t.Each[:rwWriters] {
		writes += float64(each)
	}
	return figures{
		{"acq/s", t.rate()},
		{"writes/s", writes / t.Elapsed.Seconds()},
		{"longest write wait ms", millis(longestWrite)},
		{longest, millis(t.Times.Max)},
		{"commands/acq", float64(after.sent-before.sent) / total},
		{"server-µs/acq", micros(after.cpu-before.cpu) / total},
	}, nil
}

// competeReadWrite has the first clients write, and the others read. It returns the longest wait of a writer.
func competeReadWrite(clients []client, name string, d time.Duration) (t *tally, longestWrite time.Duration, err error) {
	var writing guard
	t, err = during(d, len(clients), func(ctx context.Context, g int, w *worker) error {
		cl := clients[g].(rwClient)
		m, writes := cl.shared(name), g < rwWriters
		if writes {
			m = cl.sole(name)
		}
		for !w.over() {
			asked := time.Now()
			if err := m.lock(ctx); err != nil {
				return err
			}
			took := time.Since(asked)
			w.count(took)
			if writes {
				if err := writing.enter(m); err != nil {
					return err
				}
				longestWrite = max(longestWrite, took) // the lock guards this
			}
			time.Sleep(remoteHold)
			if writes {
				writing.leave()
			}
			if err := m.unlock(); err != nil {
				return err
			}
		}
		return nil
	})
	return t, longestWrite, err
}
