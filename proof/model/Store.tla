------------------------------- MODULE Store -------------------------------
(* The contract of a driver (package driver) as one lock at the store keeps it: what each request *)
(* changes, and what it answers. It has no variables: each operator takes the state of the lock,  *)
(* and returns the next one with the answer.                                                      *)
(*                                                                                                *)
(* Times are what is left, not instants. So the states are the same however late it is, and no    *)
(* clocks are compared.                                                                           *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Mutant,   \* the one rule that is broken, by its name in model_test.go; "none" for none
    TurnLife  \* for how long a free lock is kept for the first place in its queue

(* holders: from an owner to its mode and to how long it holds on; queue: the places in order, each *)
(* with its owner, its mode and how long it is kept; top: the greatest fence that was given.        *)
FreeLock == [holders |-> <<>>, queue |-> <<>>, top |-> 0]

Put(f, x, v) == [y \in DOMAIN f \cup {x} |-> IF y = x THEN v ELSE f[y]]
Without(f, xs) == [y \in DOMAIN f \ xs |-> f[y]]
Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

Holds(s, o) == o \in DOMAIN s.holders
Waits(s, o) == \E i \in DOMAIN s.queue : s.queue[i].owner = o
Excludes(a, b) == a = "write" \/ b = "write"

(* The owners in the queue before o: all of them if o has no place. *)
Ahead(s, o) == {i \in DOMAIN s.queue : \A j \in 1..i : s.queue[j].owner # o}

(* No request passes a place in the queue that it would keep out, or that keeps it out. *)
Admits(s, o, mode) ==
    /\ \A h \in DOMAIN s.holders : h = o \/ ~Excludes(s.holders[h].mode, mode)
    /\ Mutant = "queue-is-passed" \/ \A i \in Ahead(s, o) : ~Excludes(s.queue[i].mode, mode)

Leave(s, o) == [s EXCEPT !.queue = SelectSeq(@, LAMBDA w : w.owner # o)]

(* A life is never shortened: a request may arrive late, after one for longer. *)
Lengthen(old, ttl) == IF Mutant = "late-request-undercuts" THEN ttl ELSE Max(old, ttl)

(* A grant to an owner that holds already is a re-fence, or a downgrade. *)
Grant(s, r) ==
    LET old == IF Holds(s, r.owner) THEN s.holders[r.owner].left ELSE 0 IN
    [store |-> [Leave(s, r.owner) EXCEPT
                    !.holders = Put(@, r.owner, [mode |-> r.mode, left |-> Lengthen(old, r.ttl)]),
                    !.top = @ + r.fences],
     answer |-> [is |-> "granted", fence |-> s.top + 1, last |-> s.top + r.fences]]

(* Only an attempt by another owner starts the time for which a free lock is kept. *)
LimitTurn(s) ==
    IF s.queue # <<>> /\ Admits(s, s.queue[1].owner, s.queue[1].mode) /\ Mutant # "dead-place-stays"
    THEN [s EXCEPT !.queue[1].left = Min(@, TurnLife)] ELSE s

(* A place that exists is kept for a TTL after the latest attempt. *)
Enqueue(s, r) ==
    LET place == [owner |-> r.owner, mode |-> r.mode, left |-> r.ttl] IN
    IF Waits(s, r.owner)
    THEN [s EXCEPT !.queue = [i \in DOMAIN @ |-> IF @[i].owner = r.owner THEN place ELSE @[i]]]
    ELSE [s EXCEPT !.queue = Append(@, place)]

Acquire(s, r) ==
    IF Holds(s, r.owner)
    THEN IF s.holders[r.owner].mode = "read" /\ r.mode = "write"
         THEN [store |-> s, answer |-> [is |-> "held"]]
         ELSE Grant(s, r)
    ELSE IF Admits(s, r.owner, r.mode)
    THEN Grant(s, r)
    ELSE [store |-> IF r.queue THEN Enqueue(LimitTurn(s), r) ELSE LimitTurn(s), answer |-> [is |-> "held"]]

(* A hold that is gone is not revived. *)
Renew(s, r) ==
    IF Holds(s, r.owner)
    THEN [store |-> [s EXCEPT !.holders[r.owner].left = Lengthen(@, r.ttl)], answer |-> [is |-> "renewed"]]
    ELSE IF Mutant = "renewal-revives"
    THEN [store |-> [s EXCEPT !.holders = Put(@, r.owner, [mode |-> r.mode, left |-> r.ttl])],
          answer |-> [is |-> "renewed"]]
    ELSE [store |-> s, answer |-> [is |-> "lost"]]

(* A renewal that raises the counter of fences to a floor: the next fence is greater. *)
Raise(s, r) ==
    LET top == CASE Mutant = "floor-is-ignored" -> s.top
                 [] Mutant = "floor-lowers" -> r.floor
                 [] OTHER -> Max(s.top, r.floor)
    IN IF Holds(s, r.owner) THEN [Renew(s, r) EXCEPT !.store.top = top] ELSE Renew(s, r)

(* A release ends what belongs to its owner, and nothing else. *)
Release(s, r) ==
    LET all == IF Mutant = "release-by-name" THEN DOMAIN s.holders ELSE {r.owner} IN
    [store |-> [Leave(s, r.owner) EXCEPT !.holders = Without(@, all)],
     answer |-> [is |-> IF Holds(s, r.owner) \/ Waits(s, r.owner) THEN "released" ELSE "lost"]]

Answer(s, r) ==
    CASE r.kind = "acquire" -> Acquire(s, r)
      [] r.kind = "renew" -> Renew(s, r)
      [] r.kind = "raise" -> Raise(s, r)
      [] r.kind = "release" -> Release(s, r)

(* Time passes at the store. *)
Older(s, by) ==
    [s EXCEPT
        !.holders = [o \in {h \in DOMAIN @ : @[h].left > by} |-> [@[o] EXCEPT !.left = @ - by]],
        !.queue = LET left == SelectSeq(@, LAMBDA w : w.left > by)
                  IN [i \in DOMAIN left |-> [left[i] EXCEPT !.left = @ - by]]]

(* The store itself never has two holders, unless both read. *)
StoreExcludes(s) ==
    \A o, p \in DOMAIN s.holders : o = p \/ ~Excludes(s.holders[o].mode, s.holders[p].mode)
=============================================================================
