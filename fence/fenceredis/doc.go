// Package fenceredis checks fencing tokens in Redis, in one step with the commands that use the data.
// It works with any client:
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
//	// errors.Is(err, fence.ErrStale): another client has held the lock since; nothing was set
//
// The greatest fence of a resource is stored in a string of its own, see Key. It has no TTL and takes
// about 100 bytes for each resource. It must not be evicted while the data exists. If Redis loses its
// memory, or its last writes at a failover, it loses guard and data together if both are in one
// server. The fences of distlock's locks then continue from the clock.
//
// # Cluster
//
// A script can use the keys of one slot only. The guard of "stock:7" is in the slot of the key
// "stock:7". To protect several keys give them one hash tag, and use the same tag in the resource:
// "{stock:7}", "{stock:7}:quantity", "{stock:7}:reserved".
//
// # Without scripts
//
// Key and Judge do the same in a transaction: WATCH and GET the guard's key, call Judge, read, then
// MULTI, SET the guard's key to the fence, write, EXEC. There is an example for go-redis.
package fenceredis
