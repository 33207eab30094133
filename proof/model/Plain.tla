------------------------------- MODULE Plain -------------------------------
(* The free lock of Redis by plain commands, beside scripts for all that is not free. An acquire    *)
(* is three steps that others may come between: SET NX; the fence; GET of the own value with a look *)
(* at the queue. A release is three, too: the delete; a look at the queue; the notification. A      *)
(* script is one step. Readers come and go by scripts only.                                         *)
(*                                                                                                 *)
(* A waiter attempts only when it was notified: so a wake-up that is lost shows. Time, dead places  *)
(* and late requests are in Queue and Distlock. An Owner is never used again: a process has a new   *)
(* one for each attempt, so that its value is not found in another one's key.                      *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Mutant,    \* the rule that is broken, or "none"
    Writers, Readers,
    MaxFence,  \* after that many fences nothing is asked for any more
    MaxBreaks  \* how many locks are unlocked by force

VARIABLES
    key,      \* who holds alone, or "none"
    readers,  \* who holds with others
    queue,
    top,      \* the last fence
    pc,       \* of each process: where it is
    number,   \* of each process: the fence that it has drawn
    woken,    \* waiters that were notified, and did not come yet
    broken,   \* holders whose lock was unlocked by force
    breaks,
    began     \* the greatest fence of the holds in each mode; whether each was above those before it

vars == <<key, readers, queue, top, pc, number, woken, broken, breaks, began>>

Processes == Writers \cup Readers

Place(q, p) == CHOOSE i \in 1..Len(q) : q[i] = p
InQueue(q, p) == \E i \in 1..Len(q) : q[i] = p
Ahead(q, p) == IF InQueue(q, p) THEN {q[i] : i \in 1..(Place(q, p) - 1)} ELSE {q[i] : i \in 1..Len(q)}
Without(q, p) == SelectSeq(q, LAMBDA x : x # p)

(* Nothing that p can't share the lock with is before it. *)
MayHold(k, rs, q, p) ==
    /\ k = "none"
    /\ IF p \in Readers
       THEN Ahead(q, p) \subseteq Readers \/ Mutant = "reader-passes-writer"
       ELSE rs = {} /\ Ahead(q, p) = {}

(* The waiters that a script notifies: those at the head of the queue that may hold together. *)
LetsIn(k, rs, q) ==
    {p \in Processes : /\ InQueue(q, p) /\ MayHold(k, rs, q, p)
                       /\ Mutant = "release-wakes-one" => Ahead(q, p) = {}}

Go(p, where) == pc' = [pc EXCEPT ![p] = where]

Hold(p, fence) ==
    /\ Go(p, "hold")
    /\ broken' = broken \ {p}
    /\ began' = IF p \in Readers
                THEN [began EXCEPT !.read = IF fence > @ THEN fence ELSE @, !.ordered = @ /\ fence > began.write]
                ELSE [began EXCEPT !.write = IF fence > @ THEN fence ELSE @,
                                   !.ordered = @ /\ fence > began.write /\ fence > began.read]

(***************************************************************************************************)
(* The plain acquire                                                                               *)
(***************************************************************************************************)
Set(p) ==
    /\ p \in Writers /\ top < MaxFence
    /\ pc[p] = IF Mutant = "fence-before-set" THEN "drawn" ELSE "out"
    /\ IF key = "none" /\ readers = {}
       THEN key' = p /\ Go(p, IF Mutant = "fence-before-set" THEN "check" ELSE "fence")
       ELSE Go(p, "ask") /\ UNCHANGED key
    /\ UNCHANGED <<readers, queue, top, number, woken, broken, breaks, began>>

Draw(p) ==
    /\ p \in Writers /\ top < MaxFence
    /\ pc[p] = IF Mutant = "fence-before-set" THEN "out" ELSE "fence"
    /\ top' = top + 1
    /\ number' = [number EXCEPT ![p] = top + 1]
    /\ Go(p, IF Mutant = "fence-before-set" THEN "drawn" ELSE "check")
    /\ UNCHANGED <<key, readers, queue, woken, broken, breaks, began>>

(* Another value there, or none, says that the fence may be another one's. If somebody waits the    *)
(* lock is given back, and the caller stands in line.                                              *)
Check(p) ==
    /\ pc[p] = "check"
    /\ CASE key # p /\ Mutant # "no-read-back" ->
               Go(p, "out") /\ UNCHANGED <<key, queue, woken, broken, began>>
         [] (key = p \/ Mutant = "no-read-back") /\ (queue = <<>> \/ Mutant = "grant-past-queue") ->
               Hold(p, number[p]) /\ UNCHANGED <<key, queue, woken>>
         [] OTHER ->
               /\ key' = IF key = p THEN "none" ELSE key
               /\ queue' = Append(queue, p)
               /\ woken' = woken \cup LetsIn(key', readers, queue')
               /\ Go(p, "wait")
               /\ UNCHANGED <<broken, began>>
    /\ UNCHANGED <<readers, top, number, breaks>>

(***************************************************************************************************)
(* The plain release                                                                               *)
(***************************************************************************************************)
Deleted(p) == key' = IF key = p THEN "none" ELSE key

Delete(p) ==
    /\ p \in Writers /\ pc[p] = "hold" /\ Mutant # "exists-before-delete"
    /\ Deleted(p)
    /\ Go(p, IF key = p THEN "look" ELSE "out")
    /\ UNCHANGED <<readers, queue, top, number, woken, broken, breaks, began>>

Look(p) ==
    /\ pc[p] = "look"
    /\ Go(p, IF queue = <<>> THEN "out" ELSE "notify")
    /\ UNCHANGED <<key, readers, queue, top, number, woken, broken, breaks, began>>

Notify(p) ==
    /\ pc[p] = "notify"
    /\ woken' = woken \cup LetsIn(key, readers, queue)
    /\ Go(p, "out")
    /\ UNCHANGED <<key, readers, queue, top, number, broken, breaks, began>>

LookThenDelete(p) ==
    /\ p \in Writers /\ Mutant = "exists-before-delete"
    /\ \/ pc[p] = "hold" /\ Go(p, IF queue = <<>> THEN "saw none" ELSE "saw some") /\ UNCHANGED key
       \/ pc[p] = "saw none" /\ Deleted(p) /\ Go(p, "out")
       \/ pc[p] = "saw some" /\ Deleted(p) /\ Go(p, "notify")
    /\ UNCHANGED <<readers, queue, top, number, woken, broken, breaks, began>>

(***************************************************************************************************)
(* Scripts                                                                                         *)
(***************************************************************************************************)
Ask(p) ==
    /\ \/ pc[p] = "ask"
       \/ pc[p] = "wait" /\ p \in woken
       \/ pc[p] = "out" /\ p \in Readers
    /\ top < MaxFence
    /\ woken' = woken \ {p}
    /\ IF MayHold(key, readers, queue, p)
       THEN /\ key' = IF p \in Readers THEN key ELSE p
            /\ readers' = IF p \in Readers THEN readers \cup {p} ELSE readers
            /\ queue' = Without(queue, p)
            /\ top' = top + 1
            /\ number' = [number EXCEPT ![p] = top + 1]
            /\ Hold(p, top + 1)
       ELSE /\ queue' = IF InQueue(queue, p) THEN queue ELSE Append(queue, p)
            /\ Go(p, "wait")
            /\ UNCHANGED <<key, readers, top, number, broken, began>>
    /\ UNCHANGED breaks

(* A reader unlocks, or a waiter gives up. *)
Leave(p) ==
    /\ \/ pc[p] = "wait"
       \/ pc[p] = "hold" /\ p \in Readers
    /\ readers' = readers \ {p}
    /\ queue' = Without(queue, p)
    /\ woken' = (woken \ {p}) \cup LetsIn(key, readers', queue')
    /\ Go(p, "out")
    /\ UNCHANGED <<key, top, number, broken, breaks, began>>

(* A lock is unlocked by force. Its holder, or who is about to hold, learns nothing of that. *)
Break ==
    /\ breaks < MaxBreaks /\ key # "none"
    /\ key' = "none"
    /\ woken' = woken \cup LetsIn("none", readers, queue)
    /\ broken' = broken \cup {key}
    /\ breaks' = breaks + 1
    /\ UNCHANGED <<readers, queue, top, pc, number, began>>

Init ==
    /\ key = "none" /\ readers = {} /\ queue = <<>> /\ top = 0
    /\ pc = [p \in Processes |-> "out"] /\ number = [p \in Processes |-> 0]
    /\ woken = {} /\ broken = {} /\ breaks = 0
    /\ began = [write |-> 0, read |-> 0, ordered |-> TRUE]

Next ==
    \/ Break
    \/ \E p \in Processes :
          \/ Set(p) \/ Draw(p) \/ Check(p)
          \/ Delete(p) \/ Look(p) \/ Notify(p) \/ LookThenDelete(p)
          \/ Ask(p) \/ Leave(p)

Spec == Init /\ [][Next]_vars

Believers == {p \in Processes : pc[p] = "hold"} \ broken

OneHolder == Cardinality(Believers) > 1 => Believers \subseteq Readers

FencesIncrease == began.ordered

(* Whoever may hold has been told, or a release that has deleted is about to tell. *)
NoWakeUpLost ==
    (\A p \in Processes : pc[p] \notin {"look", "notify"}) =>
        \A p \in Processes : InQueue(queue, p) /\ MayHold(key, readers, queue, p) => p \in woken

(* A grant passes nobody in the queue but readers that share it. *)
NoOnePasses ==
    [][\A p \in Processes :
        pc'[p] = "hold" /\ pc[p] # "hold" => Ahead(queue, p) \subseteq (IF p \in Readers THEN Readers ELSE {})]_vars

(* A grant is one at the store. *)
GrantIsStored ==
    [][\A p \in Processes : pc'[p] = "hold" /\ pc[p] # "hold" => key' = p \/ p \in readers']_vars
=============================================================================
