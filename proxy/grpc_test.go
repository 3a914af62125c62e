package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"sallyport/proxy"
)

// echoService is pkg.Service of the lab's policy, by the real gRPC library: Unary
// answers, Refuse fails with details, Wait never ends, Talk answers message by
// message.
func echoService() *grpc.Server {
	text := func(ctx context.Context, in *wrapperspb.StringValue) string {
		md, _ := metadata.FromIncomingContext(ctx)
		return in.Value + " " + strings.Join(md.Get("x-kept"), ",")
	}
	unary := func(name string, f func(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error)) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.StringValue)
			if err := dec(in); err != nil {
				return nil, err
			}
			return f(ctx, in)
		}}
	}
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "pkg.Service", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			unary("Unary", func(ctx context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
				err := errors.Join(grpc.SetHeader(ctx, metadata.Pairs("x-head", "h")), grpc.SetTrailer(ctx, metadata.Pairs("x-tail", "t")))
				return wrapperspb.String(text(ctx, in)), err
			}),
			unary("Refuse", func(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
				return nil, status.Error(codes.FailedPrecondition, "not now: ä")
			}),
			unary("Wait", func(ctx context.Context, _ *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
				if _, ok := ctx.Deadline(); !ok {
					return nil, status.Error(codes.Internal, "the deadline did not arrive")
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}),
		},
		Streams: []grpc.StreamDesc{{StreamName: "Talk", ServerStreams: true, ClientStreams: true, Handler: func(_ any, st grpc.ServerStream) error {
			for n := 0; ; n++ {
				in := new(wrapperspb.BytesValue)
				switch err := st.RecvMsg(in); {
				case errors.Is(err, io.EOF):
					st.SetTrailer(metadata.Pairs("x-count", fmt.Sprint(n)))
					return nil
				case err != nil:
					return err
				}
				if err := st.SendMsg(in); err != nil {
					return err
				}
			}
		}}},
	}, struct{}{})
	return s
}

// dialGRPC returns a connection by one of the ways.
func dialGRPC(t *testing.T, l *lab, w way, host string, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+host+":443", append(more,
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(l.roots, host)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return w.open(l, ctx, addr) }))...)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestGRPC is the real client and the real server: unary, failing, past its
// deadline, streaming both ways in turn, and refused by the policy.
func TestGRPC(t *testing.T) {
	for _, w := range ways() {
		if !w.h2 {
			continue // gRPC is spoken over h2 alone
		}
		t.Run(w.name, func(t *testing.T) {
			l := newLab(t)
			s := echoService()
			t.Cleanup(s.Stop)
			l.serveOrigin("ok.test", true, http.HandlerFunc(s.ServeHTTP))
			conn := dialGRPC(t, l, w, "ok.test")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			call := func(method string, opts ...grpc.CallOption) (string, error) {
				out := new(wrapperspb.StringValue)
				err := conn.Invoke(metadata.AppendToOutgoingContext(ctx, "x-kept", "yes"), "/pkg.Service/"+method, wrapperspb.String("hi"), out, opts...)
				return out.Value, err
			}

			var head, tail metadata.MD
			got, err := call("Unary", grpc.Header(&head), grpc.Trailer(&tail))
			if err != nil || got != "hi yes" || head.Get("x-head") == nil || tail.Get("x-tail") == nil {
				t.Errorf("unary: %q, %v, header %v, trailer %v", got, err, head, tail)
			}
			if _, err = call("Refuse"); status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "not now: ä" {
				t.Errorf("a failing call: %v", err)
			}
			short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
			defer stop()
			if err := conn.Invoke(short, "/pkg.Service/Wait", wrapperspb.String(""), new(wrapperspb.StringValue)); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("a call past its deadline: %v", err)
			}
			talk(ctx, t, conn)

			// The same connection goes on after a refusal, which is a status.
			err = conn.Invoke(ctx, "/other.Service/Unary", wrapperspb.String(""), new(wrapperspb.StringValue))
			if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "path_not_allowed") {
				t.Errorf("a refused call: %v", err)
			}
			if _, err := call("Unary"); err != nil {
				t.Errorf("after a refusal: %v", err)
			}
		})
	}
}

// talk has a conversation of which each answer comes before the next question,
// so that neither side's messages may be held back.
func talk(ctx context.Context, t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	st, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/pkg.Service/Talk")
	must(t, err)
	const turns, size = 20, 200 << 10
	for range turns {
		must(t, st.SendMsg(wrapperspb.Bytes(make([]byte, size))))
		in := new(wrapperspb.BytesValue)
		must(t, st.RecvMsg(in))
		if len(in.Value) != size {
			t.Fatalf("a message of %d octets came back as %d", size, len(in.Value))
		}
	}
	must(t, st.CloseSend())
	if err := st.RecvMsg(new(wrapperspb.BytesValue)); !errors.Is(err, io.EOF) {
		t.Errorf("the end of the stream: %v", err)
	}
	if got := st.Trailer().Get("x-count"); len(got) != 1 || got[0] != fmt.Sprint(turns) {
		t.Errorf("trailer %v", st.Trailer())
	}
}

// TestGRPCRefusals: a client that tries UNAVAILABLE again, as many are told to, does so
// for what can pass, is told when, and gives up at once for what cannot.
func TestGRPCRefusals(t *testing.T) {
	const again = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 2, "initialBackoff": "0.01s", "maxBackoff": "0.01s",
		"backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`
	tests := []struct {
		name, host, method string
		head               int // octets more
		code               codes.Code
		reason             string
		attempts           int
	}{
		{"bad request", "ok.test", "/pkg.Service/%zz", 0, codes.InvalidArgument, "bad_request", 1},
		{"head too large", "ok.test", "/pkg.Service/Unary", 100 << 10, codes.ResourceExhausted, "limit", 1},
		{"no such host", "evil.test", "/pkg.Service/Unary", 0, codes.PermissionDenied, "host_not_allowed", 1},
		{"path", "ok.test", "/other/Unary", 0, codes.PermissionDenied, "path_not_allowed", 1},
		{"body too large", "small.test", "/pkg.Service/Unary", 0, codes.ResourceExhausted, "body_too_large", 1},
		{"upstream down", "any.test", "/pkg.Service/Unary", 0, codes.Unavailable, "allowed", 2},
	}
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		l := newLab(t)
		l.setPolicy(labPolicy + `
  - id: small
    reason: test
    allow: {host: small.test, ports: [443], access: write}
    limits: {request_body: 1KiB}
`)
		s := echoService()
		t.Cleanup(s.Stop)
		for _, h := range []string{"ok.test", "small.test", "evil.test"} {
			l.serveOrigin(h, true, http.HandlerFunc(s.ServeHTTP))
		}
		for _, tt := range tests {
			t.Run(w.name+", "+tt.name, func(t *testing.T) {
				conn := dialGRPC(t, l, w, tt.host, grpc.WithDefaultServiceConfig(again))
				ctx := metadata.AppendToOutgoingContext(t.Context(), "x-kept", strings.Repeat("x", tt.head))
				err := conn.Invoke(ctx, tt.method, wrapperspb.String(strings.Repeat("hi", 1<<10)), new(wrapperspb.StringValue))
				// Told before its message was written, the library says of a last attempt only that it was.
				early := tt.attempts > 1 && err != nil && strings.HasSuffix(err.Error(), "EOF")
				if status.Code(err) != tt.code && !early || tt.reason != "allowed" && !strings.Contains(err.Error(), tt.reason) {
					t.Errorf("got %v, want %v and %s", err, tt.code, tt.reason)
				}
				must(t, conn.Close())
				l.log.await(t, tt.attempts)
			})
		}
	}
}

// TestGRPCWaits: what passes by itself is told with the time to wait, in the form in
// which gRPC's clients keep it.
func TestGRPCWaits(t *testing.T) {
	l := newLab(t, func(c *proxy.Config) { c.Limits.RequestsPerCell = 1 })
	s := echoService()
	t.Cleanup(s.Stop)
	l.serveOrigin("ok.test", true, http.HandlerFunc(s.ServeHTTP))
	conn := dialGRPC(t, l, ways()[0], "ok.test")
	call := func() (tail metadata.MD, err error) {
		err = conn.Invoke(t.Context(), "/pkg.Service/Unary", wrapperspb.String("hi"), new(wrapperspb.StringValue), grpc.Trailer(&tail))
		return tail, err
	}
	if _, err := call(); err != nil {
		t.Errorf("the twin: %v", err)
	}
	held, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/pkg.Service/Talk")
	must(t, err)
	must(t, held.SendMsg(wrapperspb.Bytes([]byte("x"))))
	must(t, held.RecvMsg(new(wrapperspb.BytesValue))) // it is counted
	wait := func(reason string) {
		t.Helper()
		tail, err := call()
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), reason) || !slices.Equal(tail.Get("grpc-retry-pushback-ms"), []string{"5000"}) {
			t.Errorf("got %v, trailer %v, want %s", err, tail, reason)
		}
	}
	wait("limit")
	must(t, held.CloseSend())
	for held.RecvMsg(new(wrapperspb.BytesValue)) == nil {
	}
	l.log.failWith(errors.New("the disk is full"))
	wait("audit_unavailable")
}
