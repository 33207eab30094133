package fencehttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/distlock/distlock"
	"github.com/distlock/distlock/backend/memlock"
	"github.com/distlock/distlock/fence"
	"github.com/distlock/distlock/fence/fencehttp"
)

// The client sends the fence of the lock that it holds; the server refuses it once it has
// seen a greater one.
func Example() {
	files, err := fencehttp.New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "ok")
	}), new(fence.Memory), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(files)
	defer server.Close()

	locks, err := distlock.New(memlock.New(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	client := &http.Client{Transport: &fencehttp.Transport{Fence: distlock.Fence}}
	lock := locks.Mutex("report")

	var old context.Context
	for range 2 { // two holders, one after the other
		_ = lock.Do(context.Background(), func(ctx context.Context) error {
			if old == nil {
				old = context.WithoutCancel(ctx) // one that does not notice that its lease has ended
			}
			return put(ctx, client, server.URL+"/report")
		})
	}
	err = put(old, client, server.URL+"/report")
	fmt.Println(errors.Is(err, fence.ErrStale))
	// Output: true
}

func put(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := fencehttp.Stale(response); err != nil {
		return err // the lock is lost: take it anew and begin with reading
	}
	if response.StatusCode >= 300 {
		return errors.New(response.Status)
	}
	return nil
}
