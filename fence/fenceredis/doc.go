// Package fenceredis checks fencing tokens in Redis, in one step with the commands that
// use the data, whatever the client:
//
//	guard := fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
//		return redis.NewScript(script).Run(ctx, client, keys, args).Result() // go-redis
//	})
//	guard := fenceredis.New(func(ctx context.Context, script string, keys, args []string) (any, error) {
//		return rueidis.NewLuaScript(script).Exec(ctx, client, keys, args).ToAny() // rueidis
//	})
//
//	stock, err := guard.Run(ctx, "stock:7", f, `return redis.call('GET', KEYS[1])`, []string{"stock:7"}, nil)
//	// compute
//	_, err = guard.Run(ctx, "stock:7", f, `redis.call('SET', KEYS[1], ARGV[1])`, []string{"stock:7"}, []string{"41"})
//	// errors.Is(err, fence.ErrStale): another has held the lock meanwhile; nothing was set
//
// The greatest fence of a resource stands in a string of its own, see Key, without a TTL:
// about 100 bytes for each resource, for ever. Don't let it be evicted while the data
// stays. A Redis that loses its memory, or its last writes at a failover, loses guard and
// data together if they are in one server; the fences of distlock's locks go on from the
// clock then.
//
// # Cluster
//
// A script can use the keys of one slot only. The guard of "stock:7" is in the slot of a
// key called "stock:7". If more than one key is protected give them one hash tag, and the
// resource the same: "{stock:7}", "{stock:7}:quantity", "{stock:7}:reserved".
//
// # Where scripts are forbidden
//
// Key and Judge serve for the same in a transaction: WATCH the guard's key, GET it and
// judge, read, then MULTI, SET the guard's key to the fence, write, EXEC. An example has it
// for go-redis.
package fenceredis
