// Package fencehttp carries fencing tokens in the header Distlock-Fence, from the holder of a lock to
// the server that keeps the protected data, and checks them there.
//
// The client sends the fence of its context's lease with every request, including reads:
//
//	client := &http.Client{Transport: &fencehttp.Transport{Fence: distlock.Fence}}
//
// The server accepts a request if no greater fence was presented for its resource before:
//
//	handler, err := fencehttp.New(files, new(fence.Memory), nil)
//
// That suits data in the server's memory. Data in a database needs a guard there, since a restarted
// server, or another instance, doesn't know the fences. Then give New no guard: it only reads the
// header, and the handler passes the number on:
//
//	err := guard.Do(ctx, db, "stock:7", fencehttp.Fence(r.Context()), change) // fencesql
//	if fencehttp.Refuse(w, r, err) {
//		return
//	}
//
// Fences are trusted: a client that may send any number can block a resource for all others. So
// authenticate first. Put handlers for CORS preflights, which have no fence, before New's handler, and
// http.TimeoutHandler too: inside, it would report a request as finished that still runs.
//
// # Answers
//
//	412 Precondition Failed    the fence is stale; Options.StaleStatus may say 409
//	428 Precondition Required  there is no fence, and Options.Optional is not set
//	400 Bad Request            the header is not one decimal number above 0, or occurs twice
//
// In RFC 9110 a 412 says that "one or more conditions given in the request header fields evaluated to
// false". The fence is such a condition: that no greater fence was presented. A 409 is for conflicts
// after which the user may submit the request again, which a stale holder must not. A 428 (RFC 6585)
// is for servers that require a condition, against lost updates.
//
// No answer contains a fence. An answer to a stale fence has the header "Distlock-Fence: stale", by
// which Stale distinguishes it from the 412 of an If-Match.
//
// A cache must not answer for the server, since the guard would not see the fence: answers have
// "Cache-Control: no-store", unless the handler sets it, and "Vary: Distlock-Fence".
package fencehttp
