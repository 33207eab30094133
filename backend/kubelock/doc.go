// Package kubelock keeps locks in the Leases of a Kubernetes cluster (coordination.k8s.io/v1), in the form of client-go's
// leaderelection, so that both exclude each other and take turns.
//
//	b, err := kubelock.Open(ctx, "kube:///shop")
//
// The lock "controller" in the namespace shop is the Lease of that name. Any other name is written as a Lease's name can
// be, with 0x and two digits for each byte that it can't have: "orders/555" is orders0x2f555. A name that is too long ends in a
// hash. The annotation distlock/name has the name itself.
//
// # URL
//
//	kube:///namespace?prefix=jobs/&kubeconfig=/path&timeout=5s
//
// Without a namespace it is the one of the context or of the service account, or else "default". The parameter prefix is put
// before all names. The login is the first of these that there is:
//
//	the kubeconfig of the URL, or of the variable KUBECONFIG: its current context
//	the service account of the pod
//	~/.kube/config
//
// Files of certificates and tokens are read again for each request, so a token that is rotated goes on. What stands in a
// kubeconfig itself is read once. A kubeconfig whose user logs in by a program (exec, auth-provider) is refused.
//
// # Leases
//
// holderIdentity is the holder's Owner: who may read Leases and write them may unlock by force. leaseDurationSeconds is the TTL in
// seconds, rounded up. renewTime is later by a second at least with each renewal, even if the clock is not: client-go takes two
// renewals in one second for none. Nobody compares it with a clock. What others have written into a Lease, such as labels, stays.
//
// # Fences
//
// A fence is the resourceVersion of the write that granted, which the cluster counts for all its objects together. It goes back
// only if the cluster's etcd is restored from a copy.
//
// # Rights
//
// A Role needs the verbs get, create and update for the resource leases, watch so that waiters need not poll, and list for
// List alone. A refusal for want of a right names the verb; it ends nothing but the first call of a backend (ErrInvalid).
package kubelock
