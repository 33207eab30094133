------------------------------- MODULE Trace -------------------------------
(* Is a run of the real code one that Store.tla allows? Events, in the generated module Recorded, *)
(* are what the code asked of its backend, and what it was answered (internal/testkit/trace).      *)
(* TLC looks for instants at which the store can have done what was asked: between the call and    *)
(* its return, or up to Late after a call that ended without an answer, or never. The run is       *)
(* allowed if all of its events can happen: then Unfinished is violated.                           *)
EXTENDS Store, Recorded, TLC

CONSTANTS
    Late,   \* for how long a request may be held back after its caller has gone on
    Early,  \* by how much holds and places in the queue may end before their time …
    Slack,  \* … and after it: stores count in steps, and instants are known no better than by their events
    Queues, \* whether places in the queue are followed; with many lost calls there are too many ways
    Passes  \* whether an attempt may take a free lock, find only then that others are queued, and go back

VARIABLES
    next,   \* the number of the next event
    now,
    store,
    open,   \* the numbers of calls that the store may still execute
    done,   \* those that it has executed, and whose return is still to come
    passing \* those of open that have passed the queue, and must go back

vars == <<next, now, store, open, done, passing>>

(* Calls[c] is the call with that number, with its answer and when that came: "unknown" if none did. *)
Call(c) == Calls[c]

Useful(calls, s) ==
    {c \in calls :
        \/ Holds(s, Call(c).owner) \/ Waits(s, Call(c).owner)
        \/ \E d \in calls : Call(d).kind = "acquire" /\ Call(d).owner = Call(c).owner
        \/ Call(c).answer # "unknown"}

(* Older, but a hold or place that ends about now is still there: Ends says when it is not. *)
Aged(s, by) ==
    [s EXCEPT
        !.holders = [o \in {h \in DOMAIN @ : @[h].left + Slack > by} |-> [@[o] EXCEPT !.left = @ - by]],
        !.queue = LET left == SelectSeq(@, LAMBDA w : w.left + Slack > by)
                  IN [i \in DOMAIN left |-> [left[i] EXCEPT !.left = @ - by]]]

Ends ==
    /\ \/ \E o \in DOMAIN store.holders :
              /\ store.holders[o].left <= Early
              /\ store' = [store EXCEPT !.holders = Without(@, {o})]
       \/ \E i \in DOMAIN store.queue :
              /\ store.queue[i].left <= Early
              /\ store' = Leave(store, store.queue[i].owner)
    /\ open' = Useful(open, store')
    /\ passing' = passing \cap open'
    /\ UNCHANGED <<next, now, done>>

(* A moment before the next event or after the latest one. *)
Wait ==
    /\ next <= Len(Events) /\ now < Events[next].at
    /\ now' = Events[next].at
    /\ store' = Aged(store, Events[next].at - now)
    /\ open' = Useful({c \in open : Call(c).answer # "unknown" \/ now' <= Call(c).end + Late}, store')
    /\ passing' = passing \cap open'
    /\ UNCHANGED <<next, done>>

(* What the store does with a call, and whether that explains its answer. Without Queues it may *)
(* refuse whom it likes, and an owner that does not hold may have had a place.                   *)
Result(r) == Answer(store, [kind |-> r.kind, owner |-> r.owner, mode |-> r.mode, ttl |-> r.ttl,
                            queue |-> r.queue /\ Queues, fences |-> 0])

Refused(r) == ~Queues /\ r.kind = "acquire" /\ r.answer = "held"

Explains(is, r) ==
    \/ r.answer \in {is, "unknown"}
    \/ ~Queues /\ r.kind = "release" /\ r.answer = "released"

(* Of calls without an answer that ask for the same, the first one is executed first, and none is *)
(* that changes nothing: other orders lead to the same states.                                    *)
Same(c, d) ==
    LET kept == {"kind", "owner", "mode", "ttl", "queue"} IN
    \A field \in kept : Call(c)[field] = Call(d)[field]

Counts(c, after) ==
    Call(c).answer = "unknown" =>
        /\ after # store
        /\ \A d \in open : d < c /\ Call(d).answer = "unknown" => ~Same(c, d)

(* The fences of an answer are any that are greater than those before. *)
Executes(c) ==
    LET r == Call(c)
        result == IF Refused(r) THEN [store |-> store, answer |-> [is |-> "held"]] ELSE Result(r)
    IN
    /\ c \notin passing
    /\ Explains(result.answer.is, r)
    /\ Counts(c, result.store)
    /\ r.answer = "granted" => r.fence > store.top
    /\ store' = [result.store EXCEPT !.top = IF r.answer = "granted" THEN r.last ELSE @]
    /\ open' = Useful(open \ {c}, store')
    /\ passing' = passing \cap open'
    /\ done' = IF r.answer = "unknown" THEN done ELSE done \cup {c}
    /\ UNCHANGED <<next, now>>

(* An attempt that takes a free lock, and looks at the queue behind that (Plain.tla). Until it has gone back, others are refused. *)
(* It matters to nobody but those who ask meanwhile.                                                                              *)
Passing(c) ==
    LET r == Call(c) IN
    /\ Passes /\ r.kind = "acquire" /\ c \notin passing
    /\ DOMAIN store.holders = {} /\ ~Waits(store, r.owner) \* one that waits looks at the queue first
    /\ \E d \in open \ {c} : Call(d).kind = "acquire" /\ Call(d).owner # r.owner
    /\ store' = [store EXCEPT !.holders = Put(@, r.owner, [mode |-> r.mode, left |-> r.ttl])]
    /\ passing' = passing \cup {c}
    /\ UNCHANGED <<next, now, open, done>>

GoesBack(c) ==
    /\ store' = Release(store, Call(c)).store
    /\ passing' = passing \ {c}
    /\ UNCHANGED <<next, now, open, done>>

Happens ==
    /\ next <= Len(Events) /\ now = Events[next].at
    /\ next' = next + 1
    /\ LET e == Events[next] IN
       CASE e.is = "call" ->
                /\ open' = IF Call(e.call).answer = "unsent" THEN open ELSE open \cup {e.call}
                /\ UNCHANGED done
         [] e.is = "return" ->
                /\ Call(e.call).answer \in {"unknown", "unsent"} \/ e.call \in done
                /\ done' = done \ {e.call}
                /\ UNCHANGED open
         (* What a user trusts is backed by the store. *)
         [] e.is = "lease" ->
                /\ e.trust > 0 => Holds(store, e.owner) /\ store.holders[e.owner].left >= e.trust
                /\ e.fence <= store.top
                /\ UNCHANGED <<open, done>>
    /\ UNCHANGED <<now, store, passing>>

Init == next = 1 /\ now = 0 /\ store = FreeLock /\ open = {} /\ done = {} /\ passing = {}

Next ==
    \/ Wait \/ Ends \/ Happens
    \/ \E c \in open : Executes(c) \/ Passing(c)
    \/ \E c \in passing : GoesBack(c)

Spec == Init /\ [][Next]_vars

ASSUME TLCSet(1, 0)

(* It also prints how far TLC has come, for a run that is refused. *)
Unfinished ==
    /\ next > TLCGet(1) => TLCSet(1, next) /\ PrintT(<<"reached", next>>)
    /\ next <= Len(Events)
=============================================================================
