package occ_test

import (
	"context"
	"fmt"

	"github.com/distlock/distlock/occ"
)

func Example() {
	var stock cell
	total, err := occ.Update(context.Background(), stock.load,
		func(_ context.Context, old versioned) (versioned, error) {
			old.n += 5 // may run again: it only computes
			return old, nil
		}, stock.store)
	fmt.Println(total.n, err)
	// Output: 5 <nil>
}
