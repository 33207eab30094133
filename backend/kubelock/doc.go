// Package kubelock keeps locks in the Leases of a Kubernetes cluster (coordination.k8s.io/v1), in the form of client-go's
// leaderelection, so that both exclude each other and take turns.
//
//	b, err := kubelock.Open(ctx, "kube:///namespace?prefix=jobs/&kubeconfig=/path&timeout=5s&clock=off")
//
// The lock "controller" is the Lease of that name. What a Lease's name can't have is written as 0x and two digits for each
// byte: "orders/555" is orders0x2f555. A name that is too long ends in a hash. The annotation distlock/name has the name itself.
//
// Without a namespace it is that of the login, or "default". The parameter prefix is put before all names. The login is the first
// of these that there is: the current context of the kubeconfig of the URL, or of the variable KUBECONFIG, which is one file; the
// service account of the pod; ~/.kube/config. Files of tokens and certificates are read again for each request, and a kubeconfig
// itself is not. One whose user logs in by a program (exec) is refused.
//
// # Leases
//
// holderIdentity is the holder's Owner: who may read and write Leases may unlock by force. leaseDurationSeconds is the TTL in
// seconds, rounded up. renewTime is later by a second at least with each renewal, even if the clock is not, since client-go takes
// two renewals in one second for none. Nobody compares it with a clock. What others have written into a Lease, such as labels, stays.
//
// The lock of a process that died is free for those who have seen its Lease unchanged for its TTL (driver.Caps.Observed), and up to
// 10 s later for all others, by the times that the server puts into managedFields and its answer's Date (Caps.Late). The latter rests
// on the clocks of API servers, which may be 5 s apart. Open tries by a dry run whether both times are of one clock; clock=off does
// without.
//
// A fence is the resourceVersion of the write that granted, which the cluster counts for all its objects together. It goes back only
// if the cluster's etcd is restored from a copy.
//
// # Rights
//
// A Role needs the verbs get, create and update for the resource leases, watch so that waiters need not poll, and list for List
// alone. A refusal for want of a right names the verb, and ends nothing but the first call of a backend (ErrInvalid).
package kubelock
