------------------------------- MODULE Record -------------------------------
(* The lock in one record that is replaced only if it has the version that was read                *)
(* (internal/record): Kubernetes and S3. The store has no clock. A hold whose process died is over  *)
(* for those who have seen its version for a TTL, each by its own clock. A write may be lost, late  *)
(* and repeated, and what became of one without an answer is found by reading.                     *)
(*                                                                                                 *)
(* A client may be paused between any two of its steps. Only Tick moves time, everywhere at once.   *)
EXTENDS Integers, FiniteSets

CONSTANTS
    Mutant,   \* the rule that is broken, or "none"
    Clients,
    TTL,
    Tries,    \* how many Owners a client uses
    Sends,    \* how many writes all clients together send; each has a token of its own
    MaxNet,   \* how many writes may be on their way
    Repeats   \* whether a write may arrive more than once

VARIABLES
    record,   \* the version at the store, its holder, the last fence, and the token of the write
    net,      \* writes on their way
    clients,  \* what each client knows
    began     \* the greatest fence of a lease; whether each was above those before it

vars == <<record, net, clients, began>>

None == [is |-> "none"]
Nobody == <<"nobody", 0>>

(* seen: the version that the client saw last, and for how long. call: what waits for an answer.     *)
(* open: a write without one, until the record was read. Both have the time since before the write. *)
Fresh == [version |-> -1, holder |-> Nobody, top |-> 0, age |-> 0]
Idle == [state |-> "idle", owner |-> 0, sent |-> 0, trust |-> 0, seen |-> Fresh, call |-> None, open |-> None]

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

Owner(c) == <<c, clients[c].owner>>
Quiet(c) == clients[c].call = None

Sent == LET sum[cs \in SUBSET Clients] ==
                IF cs = {} THEN 0 ELSE LET c == CHOOSE x \in cs : TRUE IN clients[c].sent + sum[cs \ {c}]
        IN sum[Clients]

Room == Cardinality(net) < MaxNet /\ Sent < Sends

(* Writes whose caller does not wait for the answer any more: they may still arrive. *)
Orphans(c) == {IF m.from = c THEN [m EXCEPT !.live = FALSE] ELSE m : m \in net}

Trusted(age) == IF Mutant = "trusted-from-the-answer" THEN TTL ELSE Max(0, TTL - age)

(* What a client knows when its lease or its attempt is over: nothing, if it had its last Owner. *)
After(me) == IF me.owner < Tries THEN [me EXCEPT !.state = "idle", !.trust = 0, !.open = None]
             ELSE [Idle EXCEPT !.owner = me.owner, !.sent = me.sent]

(***************************************************************************************************)
(* Clients                                                                                         *)
(***************************************************************************************************)
Ask(c) ==
    /\ Quiet(c)
    /\ \/ clients[c].open # None
       \/ Sent < Sends /\ (clients[c].state = "ask" \/ (clients[c].state = "idle" /\ clients[c].owner < Tries))
    /\ clients' = [clients EXCEPT ![c].call = [kind |-> "read", age |-> 0, answer |-> None]]
    /\ UNCHANGED <<record, net, began>>

Read(c) ==
    /\ clients[c].call # None /\ clients[c].call.kind = "read" /\ clients[c].call.answer = None
    /\ clients' = [clients EXCEPT ![c].call.answer = record]
    /\ UNCHANGED <<record, net, began>>

(* A version that was not seen before is seen from the answer on: it may be as young as that. *)
See(c, r, since) ==
    LET old == clients[c].seen
        known == r.version = old.version \/ (Mutant = "watched-since-another-version" /\ r.holder = old.holder)
    IN [version |-> r.version, holder |-> r.holder, top |-> r.top,
        age |-> CASE r.holder \in {Nobody, Owner(c)} -> 0
                  [] r.holder \notin {Nobody, Owner(c)} /\ known -> old.age
                  [] OTHER -> IF Mutant = "watched-from-the-question" THEN since ELSE 0]

(* A write has taken effect. *)
Effective(c, next, kind, age, fence) ==
    IF kind = "take"
    THEN IF Trusted(age) > 0
         THEN /\ clients' = [clients EXCEPT ![c] = [next EXCEPT !.state = "hold", !.trust = Trusted(age)]]
              /\ began' = [top |-> Max(began.top, fence), ordered |-> began.ordered /\ fence > began.top]
         ELSE clients' = [clients EXCEPT ![c] = next] /\ UNCHANGED began
    ELSE clients' = [clients EXCEPT ![c] = [next EXCEPT !.trust = Max(@, Trusted(age))]] /\ UNCHANGED began

(* What was read decides what became of a write, if there is one that is open. Another version with  *)
(* another token: it never takes effect. The same version: it may still.                            *)
Learn(c) ==
    LET me == clients[c]
        r == me.call.answer
        next == [me EXCEPT !.seen = See(c, r, me.call.age), !.call = None, !.open = None]
        ours == /\ me.open # None
                /\ \/ r.token = me.open.token
                   \/ Mutant = "owner-is-proof" /\ r.holder = Owner(c)
    IN
    /\ me.call # None /\ me.call.kind = "read" /\ r # None
    /\ IF ours
       THEN Effective(c, next, me.open.kind, me.open.age, r.top)
       ELSE /\ clients' = [clients EXCEPT ![c] =
                   IF me.state = "hold" /\ r.holder # Owner(c) THEN After(next) ELSE next]
            /\ UNCHANGED began
    /\ UNCHANGED <<record, net>>

Send(c, next, kind, holder, top) ==
    LET token == <<c, next.sent + 1>> IN
    /\ Room
    /\ net' = net \cup {[kind |-> kind, from |-> c, live |-> kind # "free", old |-> next.seen.version,
                         holder |-> holder, top |-> top, token |-> token]}
    /\ clients' = [clients EXCEPT ![c] =
           IF kind = "free" THEN After([next EXCEPT !.sent = @ + 1])
           ELSE [next EXCEPT !.sent = @ + 1, !.call = [kind |-> kind, age |-> 0, answer |-> None, token |-> token]]]

(* The lock is free as far as the client knows, or its hold is over, or it is its own already. *)
Take(c) ==
    LET me == clients[c]
        next == IF me.state = "idle" THEN [me EXCEPT !.state = "ask", !.owner = @ + 1] ELSE me
        s == me.seen
    IN
    /\ me.state \in {"idle", "ask"} /\ Quiet(c) /\ me.open = None /\ next.owner <= Tries
    /\ s.version >= 0
    /\ s.holder = Nobody \/ s.holder = <<c, next.owner>> \/ s.age >= TTL
    /\ Send(c, next, "take", <<c, next.owner>>, s.top + 1)
    /\ UNCHANGED <<record, began>>

(* A hold that nobody has taken may be renewed late. *)
Renew(c) ==
    /\ clients[c].state = "hold" /\ Quiet(c) /\ clients[c].open = None
    /\ clients[c].seen.holder = Owner(c)
    /\ Send(c, clients[c], "renew", Owner(c), clients[c].seen.top)
    /\ UNCHANGED <<record, began>>

Answered(c) ==
    LET me == clients[c]
        call == me.call
    IN
    /\ call # None /\ call.kind # "read" /\ call.answer # None
    /\ IF call.answer.is = "written"
       THEN Effective(c, [me EXCEPT !.call = None, !.seen = [version |-> call.answer.version, holder |-> Owner(c),
                                                             top |-> call.answer.top, age |-> 0]],
                      call.kind, call.age, call.answer.top)
       ELSE /\ clients' = [clients EXCEPT ![c] = [me EXCEPT !.call = None,
                                !.open = [kind |-> call.kind, age |-> call.age, token |-> call.token]]]
            /\ UNCHANGED began
    /\ UNCHANGED <<record, net>>

Abandon(c) ==
    LET me == clients[c] IN
    /\ me.call # None /\ me.call.answer = None
    /\ net' = Orphans(c)
    /\ clients' = [clients EXCEPT ![c] = [me EXCEPT !.call = None,
           !.open = IF me.call.kind = "read" THEN me.open ELSE [kind |-> me.call.kind, age |-> me.call.age, token |-> me.call.token]]]
    /\ UNCHANGED <<record, began>>

(* The lease ends, and the record is to say so. *)
Release(c) ==
    /\ clients[c].state # "idle" /\ Quiet(c) /\ clients[c].seen.holder = Owner(c)
    /\ Send(c, clients[c], "free", Nobody, IF Mutant = "release-drops-counter" THEN 0 ELSE clients[c].seen.top)
    /\ UNCHANGED <<record, began>>

(* A process dies with all that it knew, and another one takes its place. *)
Crash(c) ==
    /\ clients[c].state # "idle"
    /\ net' = Orphans(c)
    /\ clients' = [clients EXCEPT ![c] = [Idle EXCEPT !.owner = clients[c].owner, !.sent = clients[c].sent]]
    /\ UNCHANGED <<record, began>>

(***************************************************************************************************)
(* The store                                                                                       *)
(***************************************************************************************************)
Conditional(m) ==
    ~(Mutant = "unconditional-renewal" /\ m.kind = "renew") /\ ~(Mutant = "unconditional-release" /\ m.kind = "free")

(* A write that can change nothing any more, and that nobody waits for, is forgotten. *)
Useful(messages, r) == {m \in messages : m.live \/ m.old = r.version \/ ~Conditional(m)}

Heard(m, answer) ==
    IF m.live /\ clients[m.from].call # None /\ clients[m.from].call.answer = None
    THEN [clients EXCEPT ![m.from].call.answer = answer] ELSE clients

Arrive(m) ==
    LET fits == m.old = record.version \/ ~Conditional(m)
        r == IF fits THEN [version |-> record.version + 1, holder |-> m.holder, top |-> m.top, token |-> m.token] ELSE record
        answer == IF fits THEN [is |-> "written", version |-> r.version, top |-> r.top] ELSE [is |-> "conflict"]
    IN
    /\ record' = r
    /\ \/ net' = Useful(net \ {m}, r) /\ clients' = Heard(m, answer)
       \/ Repeats /\ net' = Useful(net, r) /\ clients' = clients \* the answer is to the next copy
    /\ UNCHANGED began

Tick ==
    LET Older(x) == IF x = None THEN x ELSE [x EXCEPT !.age = Min(@ + 1, TTL)] IN
    /\ clients' = [c \in Clients |-> [clients[c] EXCEPT
           !.trust = Max(0, @ - 1), !.call = Older(@), !.open = Older(@),
           !.seen = IF @.holder \in {Nobody, Owner(c)} THEN @ ELSE [@ EXCEPT !.age = Min(@ + 1, TTL)]]]
    /\ UNCHANGED <<record, net, began>>

Init ==
    /\ record = [version |-> 0, holder |-> Nobody, top |-> 0, token |-> Nobody]
    /\ net = {} /\ clients = [c \in Clients |-> Idle] /\ began = [top |-> 0, ordered |-> TRUE]

Next ==
    \/ Tick
    \/ \E m \in net : Arrive(m)
    \/ \E c \in Clients :
          Ask(c) \/ Read(c) \/ Learn(c) \/ Take(c) \/ Renew(c) \/ Answered(c) \/ Abandon(c) \/ Release(c) \/ Crash(c)

Spec == Init /\ [][Next]_vars

Believes(c) == clients[c].state = "hold" /\ clients[c].trust > 0

OneHolder == Cardinality({c \in Clients : Believes(c)}) <= 1

FencesIncrease == began.ordered

(* Who believes to hold is in the record. *)
TrustIsBacked == \A c \in Clients : Believes(c) => record.holder = Owner(c)

OnlyOwnerReleases == [][\A c \in Clients : Believes(c) /\ record' # record => record'.token[1] = c]_vars
=============================================================================
