package rediswrites_test

import (
	"context"
	"strconv"

	"github.com/distlock/distlock/occ/occredis"
	"github.com/redis/go-redis/v9"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", MaxRetries: -1})
	values := occredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		return redis.NewScript(script).Run(ctx, client, keys, args).Result()
	})
	_, _ = values.Update(context.Background(), "stock:apple", func(old occredis.Value) (string, error) {
		n, err := strconv.Atoi(old.Text)
		return strconv.Itoa(n - 1), err
	})
}
