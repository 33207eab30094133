------------------------------- MODULE Queue -------------------------------
(* The queue of processes at the store, with one lock. Requests take no time here, and fences are  *)
(* left out: both are in Distlock.tla. So a process needs one Owner.                               *)
(*                                                                                                 *)
(* Wake-ups may be lost. A process that waits makes an attempt after Poll at the latest, as long   *)
(* as it lives: then Tick waits for it. Nothing else has to happen.                                *)
EXTENDS Store

CONSTANTS
    Processes,
    TTL,      \* of holds and places
    Poll,     \* the longest pause between two attempts of a process that waits
    MaxDead   \* how many processes may die

VARIABLES
    store,
    state,  \* of each process: "out", "wait", "hold" or "dead"
    pause,  \* of each process that waits: the time since its latest attempt
    woken,  \* those that the latest release has woken
    idle    \* for how long the lock has been free while a living process waits, and none gave up

vars == <<store, state, pause, woken, idle>>

Waiting == {p \in Processes : state[p] = "wait"}

NoFences(s) == [s EXCEPT !.top = 0]

(* An attempt of a process that waits leaves a place in the queue if it is refused. *)
Attempt(p) ==
    LET r == Acquire(store, [owner |-> p, mode |-> "write", ttl |-> TTL, fences |-> 1, queue |-> TRUE]) IN
    /\ state[p] \in {"out", "wait"}
    /\ store' = NoFences(r.store)
    /\ state' = [state EXCEPT ![p] = IF r.answer.is = "granted" THEN "hold" ELSE "wait"]
    /\ pause' = [pause EXCEPT ![p] = 0]
    /\ woken' = {}
    /\ idle' = IF r.answer.is = "granted" THEN 0 ELSE idle

Renewal(p) ==
    /\ state[p] = "hold" /\ Holds(store, p)
    /\ store' = Renew(store, [owner |-> p, mode |-> "write", ttl |-> TTL]).store
    /\ UNCHANGED <<state, pause, woken, idle>>

(* Those whose attempt would be granted are woken. *)
Wakes(s) ==
    {p \in Processes : Waits(s, p) /\ (Admits(s, p, "write") \/ Mutant = "release-wakes-all")}

(* A holder unlocks, or a waiter gives up. *)
Leaves(p) ==
    LET s == Release(store, [owner |-> p]).store IN
    /\ state[p] \in {"wait", "hold"}
    /\ store' = s
    /\ state' = [state EXCEPT ![p] = "out"]
    /\ pause' = [pause EXCEPT ![p] = 0]
    /\ woken' = IF s.holders = <<>> THEN Wakes(s) ELSE {}
    /\ idle' = 0

(* The hold or the place of a process that dies stays until it expires. *)
Dies(p) ==
    /\ state[p] \in {"wait", "hold"}
    /\ Cardinality({q \in Processes : state[q] = "dead"}) < MaxDead
    /\ state' = [state EXCEPT ![p] = "dead"]
    /\ pause' = [pause EXCEPT ![p] = 0]
    /\ woken' = {}
    /\ UNCHANGED <<store, idle>>

Tick ==
    LET s == Older(store, 1) IN
    /\ \A p \in Waiting : pause[p] < Poll
    /\ store' = s
    /\ state' = [p \in Processes |-> IF state[p] = "hold" /\ ~Holds(s, p) THEN "out" ELSE state[p]]
    /\ pause' = [p \in Processes |-> IF p \in Waiting THEN pause[p] + 1 ELSE 0]
    /\ woken' = {}
    /\ idle' = IF store.holders = <<>> /\ Waiting # {} THEN idle + 1 ELSE 0

Init ==
    /\ store = FreeLock
    /\ state = [p \in Processes |-> "out"]
    /\ pause = [p \in Processes |-> 0]
    /\ woken = {}
    /\ idle = 0

Next == Tick \/ \E p \in Processes : Attempt(p) \/ Renewal(p) \/ Leaves(p) \/ Dies(p)

Spec == Init /\ [][Next]_vars

StoreHasOneHolder == StoreExcludes(store)

(* A release wakes one process. *)
OneWakeUp == Cardinality(woken) <= 1

(* A free lock is taken soon if a living process waits: in Poll if that one is the first, and in   *)
(* TurnLife and Poll more for each dead process before it.                                         *)
QueueMovesOn == idle <= Poll + MaxDead * (TurnLife + Poll)

(* A grant goes to the first place. *)
NoOnePasses ==
    [][\A p \in Processes :
        state'[p] = "hold" /\ state[p] # "hold" /\ store.queue # <<>> => store.queue[1].owner = p]_vars
=============================================================================
