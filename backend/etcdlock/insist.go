package etcdlock

import (
	"context"
	"time"
)

// patience is into how many parts insist divides the time that it has.
const patience = 3

// insist asks once, and once more whenever a part of the time has passed without an answer,
// or one came that says nothing. The client takes its servers in turn: where one of them
// does not answer, the next may. What is asked must be as good if it is asked twice.
func insist[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	end, bounded := ctx.Deadline()
	if !bounded {
		return ask(ctx)
	}
	type answer struct {
		of  T
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, patience)
	tick := time.NewTicker(max(time.Until(end)/patience, time.Millisecond))
	defer tick.Stop()
	var last answer
	for asked, left := 0, 0; ; {
		if asked < patience {
			asked, left = asked+1, left+1
			go func() {
				of, err := ask(ctx)
				answers <- answer{of, err}
			}()
		}
		select {
		case last = <-answers:
			left--
			if last.err == nil || !unsure(last.err) && !isLeaderless(last.err) || asked == patience && left == 0 || ctx.Err() != nil {
				return last.of, last.err
			}
		case <-tick.C:
		}
	}
}
