------------------------------ MODULE Distlock ------------------------------
(* One lock, clients that take, renew, hand off, downgrade and release it as the core does        *)
(* (acquire.go, hold.go, downgrade.go, queue.go, internal/renew), a network that loses, delays    *)
(* and repeats what it carries, the server of "distlock serve" as one more hop, and a storage     *)
(* that checks fences.                                                                            *)
(*                                                                                                *)
(* A client may be paused between any two of its steps, since no step has to happen. Only Tick    *)
(* moves time, and moves it everywhere: clocks run at the same speed, so the margin is 0.         *)
EXTENDS Store, TLC

CONSTANTS
    Clients,   \* processes, each with one contender for the lock
    TTL,       \* of attempts and renewals
    Long,      \* of an Extend
    Tries,     \* how many Owners are used, by all clients together
    Span,      \* how many fences a grant brings; each but the first is for a hand-off
    MaxFence,  \* after that many fences nothing is asked for any more
    MaxNet,    \* how many requests may be on their way
    Features   \* what happens beside asking, renewing and releasing: see Has

VARIABLES
    store,    \* the lock at the store
    net,      \* requests on their way
    clients,  \* what each client knows
    began,    \* the greatest fence of each mode that a lease had, and the floor; whether fences were above them
    data      \* the storage that the lock protects

vars == <<store, net, clients, began, data>>

Has(feature) == feature \in Features

(***************************************************************************************************)
(* Clients                                                                                         *)
(*                                                                                                 *)
(* state: "idle", "ask" (the contender), "hold", or "keep" (for MinHold, without a lease). owner:  *)
(* how many Owners were used. trust: for how long the hold is still trusted. fence … last: the     *)
(* fence of the current lease, and the last one of the span. calls: those that wait for an answer, *)
(* with the time that has passed since before they were sent.                                      *)
(***************************************************************************************************)
Idle == [state |-> "idle", owner |-> 0, mode |-> "write", trust |-> 0, fence |-> 0, last |-> 0, calls |-> {}]

None == [is |-> "none"]

Owner(c) == <<c, clients[c].owner>>
Free(c) == clients[c].calls = {}
Believes(c) == clients[c].state = "hold" /\ clients[c].trust > 0

(* Requests whose caller does not wait for the answer any more: they may still arrive. *)
Orphans(c) == {IF m.owner[1] = c THEN [m EXCEPT !.live = FALSE] ELSE m : m \in net}

Request(owner, kind, mode, ttl, floor, live) ==
    [kind |-> kind, owner |-> owner, mode |-> mode, ttl |-> ttl, floor |-> floor, live |-> live,
     at |-> IF Has("server") THEN "server" ELSE "store"]

(* Room bounds the states. A client that finds none is one that is paused. *)
Room == Cardinality(net) < MaxNet /\ store.top < MaxFence

(* c sends a request, and waits for its answer in state. purpose is "downgrade", or the kind. *)
Call(c, next, purpose, kind, mode, ttl) ==
    /\ Room
    /\ net' = net \cup {Request(<<c, next.owner>>, kind, mode, ttl, IF kind = "raise" THEN next.last + 1 ELSE 0, TRUE)}
    /\ clients' = [clients EXCEPT ![c] = [next EXCEPT
                       !.calls = @ \cup {[purpose |-> purpose, kind |-> kind, ttl |-> ttl, age |-> 0, answer |-> None]}]]

(* c ends what it had, and sends the last request for its Owner without waiting for the answer: the *)
(* releaser repeats it. It waits for a call in flight before.                                       *)
EndWithRelease(c) ==
    /\ Free(c) \/ Mutant = "release-does-not-wait"
    /\ Cardinality(net) < MaxNet
    /\ net' = Orphans(c) \cup {Request(Owner(c), "release", "write", 0, 0, FALSE)}
    /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.owner = clients[c].owner, !.calls = clients[c].calls]]

EndSilently(c) ==
    /\ net' = Orphans(c)
    /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.owner = clients[c].owner]]

(* Trust is counted from before the request was sent. *)
Trusted(call) == IF Mutant = "trust-from-answer" THEN call.ttl ELSE Max(0, call.ttl - call.age)

(* A lease begins, or goes on with another mode: is its fence greater than those of all that began *)
(* before it and exclude it?                                                                       *)
Lease(mode, fence) ==
    began' = [began EXCEPT
        ![mode] = Max(@, fence),
        !.ordered = @ /\ fence > began.write /\ (mode = "write" => fence > began.read)]

Used == LET sum[cs \in SUBSET Clients] ==
                IF cs = {} THEN 0 ELSE LET c == CHOOSE x \in cs : TRUE IN clients[c].owner + sum[cs \ {c}]
        IN sum[Clients]

(* A contender asks. An Owner is never used again after it was released. *)
Begin(c, mode) ==
    LET reuse == Mutant = "owner-used-twice" /\ clients[c].owner > 0
        owner == IF reuse THEN clients[c].owner ELSE clients[c].owner + 1
    IN
    /\ clients[c].state = "idle" /\ Free(c)
    /\ reuse \/ Used < Tries
    /\ Call(c, [clients[c] EXCEPT !.state = "ask", !.mode = mode, !.owner = owner], "acquire", "acquire", mode, TTL)
    /\ UNCHANGED <<store, began, data>>

(* It asks again, with the same Owner. *)
AskAgain(c) ==
    /\ clients[c].state = "ask" /\ Free(c)
    /\ Call(c, clients[c], "acquire", "acquire", clients[c].mode, TTL)
    /\ UNCHANGED <<store, began, data>>

(* A grant that arrives after its own end is none. *)
Granted(c) ==
    \E call \in clients[c].calls :
        /\ call.purpose = "acquire" /\ call.answer.is = "granted"
        /\ IF Trusted(call) > 0
           THEN /\ clients' = [clients EXCEPT ![c] = [@ EXCEPT
                       !.state = "hold", !.trust = Trusted(call), !.calls = {},
                       !.fence = call.answer.fence, !.last = call.answer.last]]
                /\ Lease(clients[c].mode, call.answer.fence)
           ELSE clients' = [clients EXCEPT ![c].calls = {}] /\ UNCHANGED began
        /\ UNCHANGED <<store, net, data>>

Refused(c) ==
    \E call \in clients[c].calls :
        /\ call.purpose = "acquire" /\ call.answer.is = "held"
        /\ clients' = [clients EXCEPT ![c].calls = {}]
        /\ UNCHANGED <<store, net, began, data>>

(* The contender gives up, a lease is unlocked, or its trust has ended. What may be left at the      *)
(* store is released.                                                                              *)
End(c) ==
    /\ clients[c].state # "idle"
    /\ EndWithRelease(c)
    /\ UNCHANGED <<store, began, data>>

(* With MinHold, the lease ends and its hold is kept: renewed for what is left of that time, and     *)
(* released by End when it is over.                                                                *)
Keep(c) ==
    /\ clients[c].state = "hold"
    /\ \A call \in clients[c].calls : call.purpose = "renew"
    /\ clients' = [clients EXCEPT ![c].state = "keep"]
    /\ UNCHANGED <<store, net, began, data>>

(* The client is closed before that: the hold ends by itself. *)
Close(c) ==
    /\ clients[c].state = "keep"
    /\ EndSilently(c)
    /\ UNCHANGED <<store, began, data>>

(* The watchdog renews, an Extend renews for longer, and the quorum raises the fences of members *)
(* that have not voted to what others gave.                                                      *)
Prolong(c, kind, ttl) ==
    /\ clients[c].state \in {"hold", "keep"} /\ Free(c) /\ clients[c].trust > 0
    /\ Call(c, clients[c], "renew", kind, clients[c].mode, ttl)
    /\ UNCHANGED <<store, began, data>>

(* An answer never moves the end of trust back. "lost" is a fact. *)
Renewed(c) ==
    \E call \in clients[c].calls :
        /\ call.purpose = "renew" /\ clients[c].state \in {"hold", "keep"}
        /\ \/ /\ call.answer.is = "renewed"
              /\ clients' = [clients EXCEPT ![c].calls = {}, ![c].trust = Max(@, Trusted(call))]
              /\ UNCHANGED net
           \/ call.answer.is = "lost" /\ EndSilently(c)
        /\ UNCHANGED <<store, began, data>>

(* A call ends without an answer. A lease whose mode is not known is lost, and released by End. *)
Abandon(c) ==
    \E call \in clients[c].calls :
        /\ IF call.purpose = "downgrade"
           THEN IF Mutant = "downgrade-goes-on"
                THEN clients' = [clients EXCEPT ![c].calls = {}, ![c].mode = "write"]
                ELSE clients' = [clients EXCEPT ![c].calls = {}, ![c].trust = 0]
           ELSE clients' = [clients EXCEPT ![c].calls = {}]
        /\ net' = Orphans(c)
        /\ UNCHANGED <<store, began, data>>

(* The lease passes to the next waiter of the process: the same hold and trust, the next fence. *)
HandOff(c) ==
    LET fence == IF Mutant = "hand-off-keeps-fence" THEN clients[c].fence ELSE clients[c].fence + 1 IN
    /\ Believes(c) /\ clients[c].mode = "write" /\ clients[c].fence < clients[c].last
    /\ \A call \in clients[c].calls : call.purpose = "renew"
    /\ clients' = [clients EXCEPT ![c].fence = fence]
    /\ Lease("write", fence)
    /\ UNCHANGED <<store, net, data>>

(* The span is used up: the next waiter becomes the contender with the Owner that still holds. *)
Refence(c) ==
    /\ Believes(c) /\ Free(c) /\ clients[c].mode = "write" /\ clients[c].fence = clients[c].last
    /\ clients' = [clients EXCEPT ![c].state = "ask", ![c].trust = 0]
    /\ UNCHANGED <<store, net, began, data>>

(* From here on the user counts as a reader. *)
Downgrade(c) ==
    /\ Believes(c) /\ Free(c) /\ clients[c].mode = "write"
    /\ Call(c, [clients[c] EXCEPT !.mode = "read"], "downgrade", "acquire", "read", TTL)
    /\ UNCHANGED <<store, began, data>>

(* An answer that arrives after the end of trust, and brings none, ends the lease. *)
Downgraded(c) ==
    \E call \in clients[c].calls :
        LET trust == Max(clients[c].trust, Trusted(call)) IN
        /\ call.purpose = "downgrade" /\ call.answer # None
        /\ IF call.answer.is = "granted" /\ (trust > 0 \/ Mutant = "late-downgrade-counts")
           THEN /\ clients' = [clients EXCEPT ![c] = [@ EXCEPT
                       !.trust = trust, !.calls = {}, !.fence = call.answer.fence, !.last = call.answer.last]]
                /\ Lease("read", call.answer.fence)
           ELSE clients' = [clients EXCEPT ![c].calls = {}, ![c].trust = 0] /\ UNCHANGED began
        /\ UNCHANGED <<store, net, data>>

(* A process dies with all that it knew. Another one takes its place. *)
Crash(c) ==
    /\ clients[c].state # "idle"
    /\ EndSilently(c)
    /\ UNCHANGED <<store, began, data>>

(* A push that says that the hold lives proves nothing about the time since: it is ignored. *)
Push(c) ==
    /\ Mutant = "push-extends-trust"
    /\ Believes(c) /\ Holds(store, Owner(c))
    /\ clients' = [clients EXCEPT ![c].trust = TTL]
    /\ UNCHANGED <<store, net, began, data>>

Client(c) ==
    \/ \E mode \in {"write"} \cup (IF Has("readers") THEN {"read"} ELSE {}) : Begin(c, mode)
    \/ AskAgain(c) \/ Granted(c) \/ Refused(c) \/ End(c)
    \/ Prolong(c, "renew", TTL) \/ Renewed(c) \/ Abandon(c)
    \/ Has("extend") /\ Prolong(c, "renew", Long)
    \/ Has("floor") /\ Prolong(c, "raise", TTL)
    \/ Has("min-hold") /\ (Keep(c) \/ Close(c))
    \/ Has("hand-off") /\ (HandOff(c) \/ Refence(c))
    \/ Has("downgrade") /\ (Downgrade(c) \/ Downgraded(c))
    \/ Has("crash") /\ Crash(c)
    \/ Push(c)

(***************************************************************************************************)
(* The network and the server                                                                      *)
(***************************************************************************************************)

(* A request arrives. With "duplicate" it may arrive again. Only a caller that still waits hears   *)
(* the answer: each answer has the number of its request.                                          *)
Answered(m, answer) ==
    [clients EXCEPT ![m.owner[1]].calls =
        {IF m.live /\ call.kind = m.kind /\ call.answer = None
         THEN [call EXCEPT !.answer = answer] ELSE call : call \in @}]

(* Requests that can still change something. The rest is forgotten, to have fewer states: a renewal *)
(* or release of an owner that does not hold, and that no attempt may make hold.                    *)
Useful(requests, s) ==
    {m \in requests :
        \/ m.live \/ m.kind = "acquire" \/ Holds(s, m.owner)
        \/ \E other \in requests : other.kind = "acquire" /\ other.owner = m.owner
        \/ Mutant \in {"renewal-revives", "release-by-name", "owner-used-twice"}}

Arrive(m) ==
    LET fences == IF m.mode = "write" THEN Span ELSE 1
        result == Answer(store, [kind |-> m.kind, owner |-> m.owner, mode |-> m.mode, ttl |-> m.ttl,
                                 floor |-> m.floor, fences |-> fences, queue |-> FALSE])
    IN
    /\ m.at = "store"
    /\ m.kind = "acquire" => store.top < MaxFence
    /\ store' = result.store
    /\ clients' = Answered(m, result.answer)
    /\ \/ net' = Useful(net \ {m}, result.store)
       \/ Has("duplicate") /\ net' = Useful((net \ {m}) \cup {[m EXCEPT !.live = FALSE]}, result.store)
    /\ began' = [began EXCEPT
           !.floor = IF m.kind = "raise" /\ result.answer.is = "renewed" THEN Max(@, m.floor) ELSE @,
           !.above = @ /\ (result.answer.is = "granted" => result.answer.fence > began.floor)]
    /\ UNCHANGED data

(* A request whose caller still waits is lost once it has given up. *)
Lose(m) ==
    /\ ~m.live
    /\ net' = net \ {m}
    /\ UNCHANGED <<store, clients, began, data>>

(* The server has no state: each request is one call of its backend, made after it arrived. *)
Forward(m) ==
    /\ m.at = "server"
    /\ net' = (net \ {m}) \cup {[m EXCEPT !.at = "store"]}
    /\ UNCHANGED <<store, clients, began, data>>

(* A cache would answer for a hold from what it knows. *)
AnswerFromCache(m) ==
    /\ Mutant = "cached-renewal"
    /\ m.at = "server" /\ m.kind = "renew" /\ Holds(store, m.owner)
    /\ net' = net \ {m}
    /\ clients' = Answered(m, [is |-> "renewed"])
    /\ UNCHANGED <<store, began, data>>

(* The server is killed: what has reached it and no answer that it has not passed on survive. *)
KillServer ==
    /\ Has("server")
    /\ net' = {m \in net : m.at = "store"}
    /\ clients' = [c \in Clients |-> [clients[c] EXCEPT !.calls = {[call EXCEPT !.answer = None] : call \in @}]]
    /\ UNCHANGED <<store, began, data>>

Network ==
    \/ \E m \in net : Arrive(m) \/ Lose(m) \/ Forward(m) \/ AnswerFromCache(m)
    \/ KillServer

(***************************************************************************************************)
(* The storage                                                                                     *)
(*                                                                                                 *)
(* A holder registers its fence and reads. Its write may be as late as it likes: it may be paused, *)
(* and its lease may be over. value: the fence of the latest write, which stands for what was      *)
(* written. readers: who has read, what, and has not written yet.                                  *)
(***************************************************************************************************)
Fresh == [registered |-> 0, value |-> 0, readers |-> {}]

Passes(fence) == fence >= data.registered \/ Mutant = "storage-does-not-check"

Read(c) ==
    /\ Believes(c) /\ clients[c].mode = "write"
    /\ clients[c].fence > data.registered
    /\ data' = [data EXCEPT !.registered = clients[c].fence,
                            !.readers = @ \cup {[fence |-> clients[c].fence, value |-> data.value]}]
    /\ UNCHANGED <<store, net, clients, began>>

Write(r) ==
    /\ data' = [data EXCEPT !.readers = @ \ {r}, !.value = IF Passes(r.fence) THEN r.fence ELSE @]
    /\ UNCHANGED <<store, net, clients, began>>

Storage == Has("storage") /\ ((\E c \in Clients : Read(c)) \/ \E r \in data.readers : Write(r))

(***************************************************************************************************)
(* Time                                                                                            *)
(***************************************************************************************************)
Tick ==
    /\ store' = Older(store, 1)
    /\ clients' = [c \in Clients |-> [clients[c] EXCEPT
           !.trust = Max(0, @ - 1),
           !.calls = {[call EXCEPT !.age = Min(call.ttl, @ + 1)] : call \in @}]]
    /\ UNCHANGED <<net, began, data>>

Init ==
    /\ store = FreeLock
    /\ net = {}
    /\ clients = [c \in Clients |-> Idle]
    /\ began = [write |-> 0, read |-> 0, ordered |-> TRUE, floor |-> 0, above |-> TRUE]
    /\ data = Fresh

Next == Tick \/ (\E c \in Clients : Client(c)) \/ Network \/ Storage

Spec == Init /\ [][Next]_vars

(***************************************************************************************************)
(* What is promised                                                                                *)
(***************************************************************************************************)

(* No two clients believe that they hold, unless both read. *)
OneHolder ==
    \A c, d \in Clients : c # d /\ Believes(c) /\ Believes(d) => ~Excludes(clients[c].mode, clients[d].mode)

(* The store keeps a hold for at least as long as its client trusts it. OneHolder follows. *)
TrustIsBacked ==
    \A c \in Clients : Believes(c) => Holds(store, Owner(c)) /\ store.holders[Owner(c)].left >= clients[c].trust

(* Nothing but the holder's own release, which it sends after it has stopped to believe, takes a   *)
(* hold away that is believed.                                                                     *)
OnlyOwnerReleases == \A c \in Clients : Believes(c) => Holds(store, Owner(c))

StoreHasOneHolder == StoreExcludes(store)

(* No two calls run at once for one Owner: when its last one is sent, none waits for an answer. *)
OneCall == \A c \in Clients : Cardinality(clients[c].calls) <= IF clients[c].state = "idle" THEN 0 ELSE 1

(* A lease has a greater fence than all that began before it and exclude it. *)
FencesIncrease == began.ordered

(* A grant has a greater fence than each floor that a renewal had raised before. *)
FloorsHold == began.above

(* What is written was read from what is replaced. *)
NoLostUpdate ==
    [][\A r \in data.readers : data' # data /\ data'.value = r.fence => data.value = r.value]_vars

Symmetry == Permutations(Clients)
=============================================================================
