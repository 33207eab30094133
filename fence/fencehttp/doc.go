// Package fencehttp carries fencing tokens in the header Distlock-Fence, from the holder
// of a lock to the server that keeps what the lock protects, and checks them there.
//
// The client sends the fence of the lease that its context descends from, with every
// request, also with those that only read:
//
//	client := &http.Client{Transport: &fencehttp.Transport{Fence: distlock.Fence}}
//
// The server lets a request through if nobody has presented a greater fence for its
// resource:
//
//	handler, err := fencehttp.New(files, new(fence.Memory), nil)
//
// That suits data that lives in the server's memory. What is in a database needs its guard
// there, since a server that is restarted, or another instance, has forgotten or never
// seen what was presented. Then give New no guard: it reads the header, and the handler
// hands the number on:
//
//	err := guard.Do(ctx, db, "stock:7", fencehttp.Fence(r.Context()), change) // fencesql
//	if fencehttp.Refuse(w, r, err) {
//		return
//	}
//
// A fence is believed: who may send any number can keep all others out of a resource. So ask
// who it is first. What answers CORS preflights, which have no fence, comes first as well, and
// http.TimeoutHandler: inside of New's handler it would say that a request has left which
// goes on.
//
// # Answers
//
//	412 Precondition Failed    the fence is stale; Options.StaleStatus may say 409
//	428 Precondition Required  there is no fence, and Options.Optional is not set
//	400 Bad Request            the header is not one decimal number above 0, or comes twice
//
// By RFC 9110 a 412 says that "one or more conditions given in the request header fields
// evaluated to false": the fence is such a condition, "only if nobody with a greater fence
// was here". A 409 is for conflicts that the user can resolve and then submit the request
// again, which a stale holder must not. 428 (RFC 6585) was made for servers that want to be
// asked on a condition, against lost updates.
//
// No answer tells a fence. One that is stale has the header "Distlock-Fence: stale", by
// which Stale tells it from the 412 of an If-Match.
//
// A cache must not answer in the server's place, since the guard would not learn of the
// fence: answers say "Cache-Control: no-store" unless the handler says otherwise, and "Vary:
// Distlock-Fence".
package fencehttp
