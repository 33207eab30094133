package etcdlock

import (
	"context"
	"sync"
	"time"

	"github.com/distlock/distlock/internal/netaddr"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// LoginOptions returns the DialOptions with which your own client logs in with what the function returns. It is
// called for each login, since passwords change, and from several goroutines. If it fails, so does that login, which is
// tried again. The client's Config must have no Username.
//
// A client with these options also logs in again at servers before 3.5, where one with a Username can't after its token has
// ended.
func LoginOptions(credentials func(ctx context.Context) (user, password string, err error)) []grpc.DialOption {
	l := &login{credentials: credentials, running: map[*grpc.ClientConn]*loginCall{}}
	return []grpc.DialOption{
		grpc.WithPerRPCCredentials(l), grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream),
	}
}

// login is the login of a client, for all its connections. clientv3's own knows one password only. Each
// call shows the token of the last login. A call whose token is refused logs in, and is sent again.
type login struct {
	credentials netaddr.Credentials

	mu      sync.Mutex
	valid   bool // there was a login
	token   string
	running map[*grpc.ClientConn]*loginCall
}

// loginCall is a login in progress, for which several calls wait.
type loginCall struct {
	done chan struct{}
	err  error
}

const (
	authenticate = "/etcdserverpb.Auth/Authenticate"
	loginTimeout = 10 * time.Second
)

// withoutToken marks the context of a login: servers before 3.5 refuse one that shows a token which has ended.
type withoutToken struct{}

// GetRequestMetadata returns the token for a call.
func (l *login) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	if token, _ := l.current(); token != "" && ctx.Value(withoutToken{}) == nil {
		return map[string]string{rpctypes.TokenFieldNameGRPC: token}, nil
	}
	return nil, nil
}

// RequireTransportSecurity is false, as for clientv3: the URL says whether there is TLS.
func (l *login) RequireTransportSecurity() bool { return false }

func (l *login) current() (token string, valid bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, l.valid
}

func (l *login) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == authenticate {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	token, valid := l.current()
	if valid {
		err := invoke(ctx, method, req, reply, cc, opts...)
		switch etcdError(err) {
		case rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty:
		default:
			return err
		}
	}
	if err := l.renew(ctx, cc, token); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// stream logs in anew: a server refuses what is sent on the stream without saying that the token has ended. Keep-alives
// need no login.
func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if method == leaseKeepAlive {
		return open(ctx, desc, cc, method, opts...)
	}
	token, _ := l.current()
	if err := l.renew(ctx, cc, token); err != nil {
		return nil, err
	}
	return open(ctx, desc, cc, method, opts...)
}

// renew logs in, unless another call has replaced the token meanwhile.
func (l *login) renew(ctx context.Context, cc *grpc.ClientConn, token string) error {
	l.mu.Lock()
	if l.valid && l.token != token {
		l.mu.Unlock()
		return nil
	}
	call := l.running[cc]
	if call == nil {
		call = &loginCall{done: make(chan struct{})}
		l.running[cc] = call
		go l.authenticate(context.WithoutCancel(ctx), cc, call)
	}
	l.mu.Unlock()
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// authenticate logs in. It is not ended with the call that has begun it, since others may wait for it.
func (l *login) authenticate(ctx context.Context, cc *grpc.ClientConn, call *loginCall) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, withoutToken{}, true), loginTimeout)
	defer cancel()
	resp := &pb.AuthenticateResponse{}
	user, password, err := l.credentials(ctx)
	if err == nil {
		err = cc.Invoke(ctx, authenticate, &pb.AuthenticateRequest{Name: user, Password: password}, resp)
	}
	if etcdError(err) == rpctypes.ErrAuthNotEnabled {
		err = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if call.err = err; err == nil {
		l.token, l.valid = resp.Token, true
	}
	delete(l.running, cc)
	close(call.done)
}
