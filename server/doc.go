// Package server gives programs in every language the locks of one backend, over HTTP and JSON.
//
//	b, err := driver.Open(ctx, "redis://localhost:6379")
//	s, err := server.New(b, server.Options{})
//	err = http.ListenAndServe("127.0.0.1:7800", s)
//
// The command distlock serve does this, with TLS, tokens, limits and an orderly end. Package httplock is the
// client for Go. The folder clients has others, and openapi.json describes the calls for the rest.
//
// # What the server promises
//
// A server has no state that a lock depends on: any number of servers may stand before one backend, and a
// server that is killed loses nothing. The client makes the Owner, which is the idempotency key and the proof
// of holding, as it is between distlock and a backend (see package driver).
//
// Every positive answer rests on a call of the backend that began after the request had arrived. So a client
// that counts the TTL from before it sent the request trusts a hold for no longer than it lives. Nothing that
// the server pushes prolongs a hold. The server never repeats an acquire for a client that has gone, and never
// releases what it was granted for an Owner that the client made.
//
// This needs a backend whose holds outlive its connection, and can be renewed through any other: see
// driver.Caps.
//
// # The page
//
// The server's own page shows people what is held and waited for, live, and lets them ask for locks and break
// them, as far as their token allows.
package server
