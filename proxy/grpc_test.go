package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
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
func dialGRPC(t *testing.T, l *lab, w way, host string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+host+":443",
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(l.roots, host)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return w.open(l, ctx, addr) }))
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
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
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
