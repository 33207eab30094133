package etcdlock

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// loginAfresh logs in without the token of the last time if that is what a server refuses.
// Servers before 3.5 do so, once it has ended or they were restarted, and the client would
// send it with one login after the other, for ever.
func (t *urlConfig) loginAfresh(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if method != pb.Auth_Authenticate_FullMethodName || !errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken) {
		return err
	}
	client, err := clientv3.New(t.withoutLogin().config(ctx))
	if err != nil {
		return err
	}
	defer client.Close()
	resp, err := pb.NewAuthClient(client.ActiveConnection()).Authenticate(ctx, req.(*pb.AuthenticateRequest))
	if err == nil {
		answer := reply.(*pb.AuthenticateResponse)
		answer.Header, answer.Token = resp.Header, resp.Token
	}
	return err
}

// withoutLogin is the same target for somebody who does not log in.
func (t *urlConfig) withoutLogin() *urlConfig {
	a := *t
	a.user, a.password = "", ""
	return &a
}
