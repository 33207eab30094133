------------------------------ MODULE Engine ------------------------------
(* A lock in one text that a store with a clock replaces, whole or in part (internal/engine): rows  *)
(* of a database. A change may be lost, or arrive long after its sender has given up. Each client    *)
(* believes in its hold for a TTL from before the call that was granted.                             *)
(*                                                                                                   *)
(* A client may be paused between any two of its steps. Only Tick moves time, everywhere at once.    *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
    Mutant,   \* the rule that is broken, or "none"
    Clients,
    TTL,
    Tries,    \* how many Owners a client uses
    MaxClock, \* when time stands still
    MaxNet    \* how many changes may be on their way

VARIABLES
    clock,    \* of the store
    store,    \* the version, the claim that the text has, and the stamp that changes must exceed
    net,      \* changes on their way
    clients,  \* what each client knows
    over,     \* owners of whom a Release has said that they have nothing any more
    began     \* the greatest fence of a lease; whether each was above those before it

vars == <<clock, store, net, clients, over, began>>

None == [owner |-> <<"nobody", 0>>, until |-> 0]

(* own: the own claim as the store has it, as far as the client knows. version, claim: what it has read *)
(* last, and over: whether that claim had ended. ahead: by how much the bound of the store's clock may  *)
(* be too great: the time from before the call that told it. void: of what it has read last. lost: the   *)
(* stamp of a take without an answer. call: when the call began that waits for an answer, or -1.         *)
Idle == [state |-> "idle", try |-> 0, own |-> None, trust |-> 0, version |-> -1, claim |-> None, over |-> FALSE,
         ahead |-> 0, told |-> 0, void |-> 0, lost |-> 0, call |-> -1]

Max(a, b) == IF a > b THEN a ELSE b

Owner(c) == <<c, clients[c].try>>
Quiet(c) == clients[c].call = -1
Believes(c) == clients[c].state = "hold" /\ clock < clients[c].trust
Room == Cardinality(net) < MaxNet

(* The second rule: the end of an own hold counts from a bound of the store's clock. *)
Bound(me) == IF Mutant = "end-from-lower-bound" THEN me.told ELSE clock + me.ahead

Told(me) == [me EXCEPT !.call = -1, !.ahead = clock - me.call, !.told = IF Mutant = "end-from-lower-bound" THEN clock ELSE 0]

(***************************************************************************************************)
(* The store                                                                                       *)
(***************************************************************************************************)
Whole(m) == m.old = None

Makes(m) ==
    /\ m.before = 0 \/ clock < m.before \/ Mutant = "no-before"
    /\ m.stamp = 0 \/ m.stamp > store.void
    /\ IF Whole(m) THEN store.version = m.version \/ (m.stamp > 0 /\ store.claim.until <= clock)
       ELSE store.claim = m.old

After(m) == [version |-> store.version + 1, claim |-> m.new, void |-> Max(store.void, m.void)]

(***************************************************************************************************)
(* Clients                                                                                         *)
(***************************************************************************************************)
Ask(c) ==
    /\ Quiet(c) /\ clients[c].state \in {"idle", "ask", "end"}
    /\ clients[c].state = "idle" => clients[c].try < Tries
    /\ clients' = [clients EXCEPT ![c] = [@ EXCEPT !.call = clock, !.version = -1,
                       !.state = IF @ = "idle" THEN "ask" ELSE @, !.try = IF clients[c].state = "idle" THEN @ + 1 ELSE @]]
    /\ UNCHANGED <<clock, store, net, over, began>>

Reading(c) == clients[c].call >= 0 /\ ~\E m \in net : m.from = c /\ m.live

Read(c) ==
    /\ Reading(c)
    /\ clients' = [clients EXCEPT ![c] = [Told(@) EXCEPT !.version = store.version, !.claim = store.claim,
                       !.void = store.void, !.over = store.claim.until <= clock]]
    /\ UNCHANGED <<clock, store, net, over, began>>

Send(c, me, change) ==
    /\ Room
    /\ net' = net \cup {[change EXCEPT !.from = c, !.live = TRUE]}
    /\ clients' = [clients EXCEPT ![c] = [me EXCEPT !.call = clock]]
    /\ UNCHANGED <<clock, store, over, began>>

Change(kind, version, stamp, before, void, old, new) ==
    [kind |-> kind, from |-> "", live |-> TRUE, version |-> version, stamp |-> stamp, before |-> before,
     void |-> void, old |-> old, new |-> new]

Stamp(me) == Max(me.void + 1, Bound(me))

(* Another's hold is over by a clock that the store has told. What it wrote last may have changed by   *)
(* then: the change also replaces another version, if nothing lasts in it.                             *)
Take(c) ==
    LET me == clients[c]
        new == [owner |-> Owner(c), until |-> Bound(me) + TTL]
    IN
    /\ Quiet(c) /\ me.state = "ask" /\ me.version >= 0
    /\ me.over
    /\ Send(c, me, Change("take", me.version, Stamp(me), new.until, 0, None, new))

(* A client that has held a lock knows its version, and asks nothing first. *)
TakeBlindly(c) ==
    LET me == clients[c] IN
    /\ Quiet(c) /\ me.state = "idle" /\ me.version >= 0 /\ me.try < Tries
    /\ Send(c, [me EXCEPT !.state = "ask", !.try = @ + 1],
            LET new == [owner |-> <<c, me.try + 1>>, until |-> Bound(me) + TTL]
            IN Change("take", me.version, Stamp(me), new.until, 0, None, new))

Renew(c) ==
    LET me == clients[c]
        new == [me.own EXCEPT !.until = Max(@, Bound(me) + TTL)]
    IN
    /\ Quiet(c) /\ me.state = "hold" /\ new # me.own
    /\ Send(c, me, Change("renew", 0, 0, me.own.until, 0, me.own, new))

End(c) ==
    /\ Quiet(c)
    /\ \/ clients[c].state = "hold"
       \/ clients[c].state = "ask" /\ clients[c].lost > 0
    /\ clients' = [clients EXCEPT ![c] = [@ EXCEPT !.state = "end", !.trust = 0, !.version = -1]]
    /\ UNCHANGED <<clock, store, net, over, began>>

(* The claim is removed. If there is none, the third rule: what has no greater stamp than the lost     *)
(* take is made void.                                                                                  *)
Release(c) ==
    LET me == clients[c]
        lasts == me.claim.owner = Owner(c) /\ ~me.over
    IN
    /\ Quiet(c) /\ me.state = "end" /\ me.version >= 0
    /\ IF lasts THEN Send(c, me, Change("free", 0, 0, me.claim.until, 0, me.claim, None))
       ELSE IF me.lost > me.void /\ Mutant # "lost-write-by-timer"
       THEN Send(c, me, Change("raise", me.version, 0, 0, me.lost, None, me.claim))
       ELSE /\ over' = over \cup {Owner(c)}
            /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.try = me.try]]
            /\ UNCHANGED <<clock, store, net, began>>

(* A call without an answer: it may still arrive. *)
Abandon(c) ==
    LET me == clients[c] IN
    /\ me.call >= 0 /\ ~Reading(c)
    /\ net' = {IF m.from = c THEN [m EXCEPT !.live = FALSE] ELSE m : m \in net}
    /\ clients' = [clients EXCEPT ![c] = [@ EXCEPT !.call = -1, !.version = -1,
           !.lost = LET takes == {m.stamp : m \in {n \in net : n.from = c /\ n.live /\ n.kind = "take"}}
                     IN IF takes = {} THEN @ ELSE Max(@, CHOOSE b \in takes : TRUE),
           !.state = IF \E m \in net : m.from = c /\ m.live /\ m.kind \in {"take", "renew"} THEN "end" ELSE @,
           !.trust = IF \E m \in net : m.from = c /\ m.live /\ m.kind = "renew" THEN 0 ELSE @]]
    /\ UNCHANGED <<clock, store, over, began>>

(***************************************************************************************************)
(* A change arrives, or is lost                                                                    *)
(***************************************************************************************************)
Answered(c, m, done, is) ==
    LET me == clients[c]
        told == [Told(me) EXCEPT !.version = is.version, !.claim = is.claim, !.void = is.void,
                            !.over = is.claim.until <= clock]
    IN CASE done /\ m.kind \in {"take", "renew"} ->
                [Told(me) EXCEPT !.state = "hold", !.own = m.new, !.trust = me.call + TTL, !.lost = 0,
                                 !.version = -1, !.claim = None, !.void = 0, !.over = FALSE]
         [] done /\ m.kind = "free" -> [Idle EXCEPT !.try = me.try, !.version = is.version, !.void = is.void, !.ahead = told.ahead, !.told = told.told]
         [] done /\ m.kind = "raise" -> [told EXCEPT !.lost = 0]
         [] ~done /\ m.kind = "renew" -> [Told(me) EXCEPT !.state = "end", !.trust = 0]
         [] OTHER -> told

(* Changes that can still be made. The rest is forgotten, to have fewer states. *)
Useful(changes, is, now) ==
    {m \in changes :
        \/ m.live
        \/ /\ m.before = 0 \/ now < m.before \/ Mutant = "no-before"
           /\ m.stamp = 0 \/ m.stamp > is.void
           /\ Whole(m) \/ is.claim = m.old}

Arrive(m) ==
    LET done == Makes(m)
        is == IF done THEN After(m) ELSE store
        c == m.from
    IN
    /\ store' = is
    /\ net' = Useful(net \ {m}, is, clock)
    /\ clients' = IF m.live THEN [clients EXCEPT ![c] = Answered(c, m, done, is)] ELSE clients
    /\ over' = IF m.live /\ done /\ m.kind = "free" THEN over \cup {m.old.owner} ELSE over
    /\ began' = IF m.live /\ done /\ m.kind = "take"
                THEN [top |-> Max(began.top, is.version), ordered |-> began.ordered /\ is.version > began.top] ELSE began
    /\ UNCHANGED clock

Lose(m) ==
    /\ ~m.live
    /\ net' = net \ {m}
    /\ UNCHANGED <<clock, store, clients, over, began>>

Tick ==
    /\ clock < MaxClock
    /\ clock' = clock + 1
    /\ net' = Useful(net, store, clock + 1)
    /\ UNCHANGED <<store, clients, over, began>>

Init ==
    /\ clock = 1
    /\ store = [version |-> 0, claim |-> None, void |-> 0]
    /\ net = {}
    /\ clients = [c \in Clients |-> Idle]
    /\ over = {}
    /\ began = [top |-> 0, ordered |-> TRUE]

Next ==
    \/ Tick
    \/ \E c \in Clients : Ask(c) \/ Read(c) \/ Take(c) \/ TakeBlindly(c) \/ Renew(c) \/ End(c) \/ Release(c) \/ Abandon(c)
    \/ \E m \in net : Arrive(m) \/ Lose(m)

Spec == Init /\ [][Next]_vars

(***************************************************************************************************)
(* What is promised                                                                                *)
(***************************************************************************************************)
OneHolder == \A c, d \in Clients : c # d => ~(Believes(c) /\ Believes(d))

(* The store keeps a hold for as long as its client trusts it. OneHolder follows. *)
TrustIsBacked ==
    \A c \in Clients : Believes(c) => store.claim.owner = Owner(c) /\ store.claim.until >= clients[c].trust

(* What a Release has called over is over. *)
NothingReturns == store.claim.owner \in over => store.claim.until <= clock

FencesIncrease == began.ordered

(* A version never comes back for another text. *)
VersionsIncrease == [][store' # store => store'.version > store.version]_vars

Symmetry == Permutations(Clients)
=============================================================================
