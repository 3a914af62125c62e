package proxy_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // registers the coding
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// calls is what a server of gRPC was told.
type calls struct {
	mu  sync.Mutex
	saw []string
}

func (c *calls) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := strings.Join(c.saw, ",")
	c.saw = nil
	return out
}

// serveCalls answers free.Service/Say and key.Service/Say with what it was told, and with
// the key that came with it.
func serveCalls(t *testing.T, b *brokered) *calls {
	t.Helper()
	c := &calls{}
	say := func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := dec(in); err != nil {
			return nil, err
		}
		md, _ := metadata.FromIncomingContext(ctx)
		text := in.Value + " " + strings.Join(md.Get("x-api-key"), ",")
		c.mu.Lock()
		defer c.mu.Unlock()
		c.saw = append(c.saw, text)
		return wrapperspb.String(text), nil
	}
	s := grpc.NewServer()
	for _, name := range []string{"free.Service", "key.Service"} {
		s.RegisterService(&grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Say", Handler: say}}}, struct{}{})
	}
	t.Cleanup(s.Stop)
	b.ledger.calls = s
	return c
}

// TestCompressedCalls: CR-16. The real client compresses its messages, and the real server
// then does so as well. A placeholder in a message is a leak, whether or not the call has a
// credential; others arrive, and the key that the server repeats does not come back.
func TestCompressedCalls(t *testing.T) {
	b := newBrokered(t)
	server := serveCalls(t, b)
	stand, secret := b.stands["header"], b.secrets["header"]
	long := strings.Repeat("some text ", 5000)
	for _, w := range ways() {
		if !w.h2 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			s := &sender{brokered: b, t: t, w: w}
			conn := dialGRPC(t, b.lab, w, callsHost, grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for service, key := range map[string][2]string{"free": {}, "key": {stand, secret}} {
				call := func(text string) (string, error) {
					ctx := ctx
					if key[0] != "" {
						ctx = metadata.AppendToOutgoingContext(ctx, "x-api-key", key[0])
					}
					out := new(wrapperspb.StringValue)
					err := conn.Invoke(ctx, "/"+service+".Service/Say", wrapperspb.String(text), out)
					return out.Value, err
				}
				for _, before := range []string{"", long} {
					text := before + innocent(stand)
					got, err := call(text)
					if err != nil || got != text+" "+key[0] {
						t.Errorf("%s, twin: %d octets, %v", service, len(got), err)
					}
					if saw := server.take(); saw != text+" "+key[1] {
						t.Errorf("%s, twin: the server saw %d octets", service, len(saw))
					}
					told := fired{records: s.closing()}.told()
					if want := "admit allowed, credential allowed, done allowed"; service == "key" && told != want || service == "free" && told != "admit allowed, done allowed" {
						t.Errorf("%s, twin: records %s", service, told)
					}

					_, err = call(before + stand)
					if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "placeholder_leak") {
						t.Errorf("%s: %v", service, err)
					}
					if saw := server.take(); saw != "" {
						t.Errorf("%s: the server saw %d octets", service, len(saw))
					}
					if told := (fired{records: s.closing()}).told(); !strings.HasSuffix(told, "done placeholder_leak, credential placeholder_leak") {
						t.Errorf("%s: records %s", service, told)
					}
				}
			}
		})
	}
}
