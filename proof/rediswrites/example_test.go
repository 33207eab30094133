package rediswrites_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"

	"github.com/distlock/distlock/fence/fenceredis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	guard := fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		return redis.NewScript(script).Run(ctx, client, keys, args).Result()
	})
	if err := sell(context.Background(), guard, 33); err != nil {
		log.Print(err)
	}
}

func ExampleNew_rueidis() {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
	if err != nil {
		log.Print(err)
		return
	}
	guard := fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
		return rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny()
	})
	if err := sell(context.Background(), guard, 33); err != nil {
		log.Print(err)
	}
}

// sell removes one item from the stock. f is the fence of the lock: distlock.Fence(ctx).
func sell(ctx context.Context, guard *fenceredis.Guard, f uint64) error {
	keys := []string{"stock:7"}
	left, err := guard.Run(ctx, "stock:7", f, "return tonumber(redis.call('GET', KEYS[1]) or 0)", keys, nil)
	if err != nil {
		return err // fence.ErrStale: another client has held the lock since
	}
	rest := []string{strconv.FormatInt(left.(int64)-1, 10)}
	_, err = guard.Run(ctx, "stock:7", f, "redis.call('SET', KEYS[1], ARGV[1])", keys, rest)
	return err
}

// On a server without scripts, a transaction does the same.
func ExampleJudge() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	if err := sellWithoutScripts(context.Background(), client, "stock:7", 33); err != nil {
		log.Print(err)
	}
}

// sellWithoutScripts removes one item from the stock. redis.TxFailedErr means that another client
// entered meanwhile: begin again.
func sellWithoutScripts(ctx context.Context, client redis.UniversalClient, stock string, f uint64) error {
	guard, err := fenceredis.Key(stock)
	if err != nil {
		return err
	}
	return client.Watch(ctx, func(tx *redis.Tx) error {
		seen, err := tx.Get(ctx, guard).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if err := fenceredis.Judge(stock, f, seen); err != nil {
			return err
		}
		left, err := tx.Get(ctx, stock).Int()
		if err != nil {
			return fmt.Errorf("read %s: %w", stock, err)
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, guard, f, 0)
			p.Set(ctx, stock, left-1, 0)
			return nil
		})
		return err
	}, guard)
}
