// Stock is a shop that has four cups, three hosts that sell them, and two customers at each. A sale
// reads how many cups are left, takes the payment, and writes one less.
//
// Without a lock two sales read the same number while a payment is on its way. Both write one less, so
// two cups are sold and one is deducted: the shop sells more cups than it has. Under a lock this can't
// happen.
package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/distlock/distlock/examples/internal/story"
)

const (
	cups      = 4
	customers = 2 // at each host
	payment   = 20 * time.Millisecond
)

func main() {
	story.Main(func(ctx context.Context, s *story.Story) error {
		s.Title("Four cups, sold without a lock")
		if _, err := open(ctx, s, sell); err != nil {
			return err
		}
		s.Title("Four cups, sold under a lock")
		_, err := open(ctx, s, sellLocked)
		return err
	})
}

// sell sells a cup, if there is one. It is correct for one customer at a time.
func sell(_ context.Context, _ *story.Host, cups *shelf) (bool, error) {
	left := cups.Load()
	if left == 0 {
		return false, nil
	}
	time.Sleep(payment)
	cups.Store(left - 1)
	return true, nil
}

// sellLocked calls sell for one customer at a time, over all hosts.
func sellLocked(ctx context.Context, host *story.Host, cups *shelf) (sold bool, err error) {
	err = host.Mutex("stock:cup").Do(ctx, func(ctx context.Context) error {
		sold, err = sell(ctx, host, cups)
		return err
	})
	return sold, err
}

// open lets all customers buy until there are no cups left, and returns how many were sold.
func open(ctx context.Context, s *story.Story, sell func(context.Context, *story.Host, *shelf) (bool, error)) (int, error) {
	hosts, err := s.Hosts(ctx, 3)
	if err != nil {
		return 0, err
	}
	var sales atomic.Int64
	left := new(shelf)
	left.Store(cups)
	err = story.Together(hosts, customers, func(h *story.Host) error {
		for {
			sold, err := sell(ctx, h, left)
			if err != nil || !sold {
				return err
			}
			h.Say("sold cup number %d", sales.Add(1))
		}
	})
	s.Say("the shop", "had %d cups and sold %d", cups, sales.Load())
	return int(sales.Load()), err
}

// shelf stands for a row of a database: each Load and Store is a statement.
type shelf struct{ atomic.Int64 }
