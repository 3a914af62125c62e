package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxBody bounds a control message in either direction.
const maxBody = 4 << 20

// Error is a refusal by the other side, with what to do about it.
type Error struct {
	Status int    `json:"-"`
	Reason string `json:"reason,omitempty"` // a rules.Reason where there is one
	Text   string `json:"error"`
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

type peerKey struct{}

// Peer returns the user id of the process at the other end of a request to a
// [NewServer]; ok is false if the kernel did not tell.
func Peer(ctx context.Context) (uid uint32, ok bool) {
	uid, ok = ctx.Value(peerKey{}).(uint32)
	return uid, ok
}

// NewServer returns a server for a unix socket whose requests know their peer
// by SO_PEERCRED (unix(7)). Connections that do not tell are served as nobody.
func NewServer(h http.Handler) *http.Server {
	st := &streams{handler: h, open: map[net.Conn]struct{}{}}
	s := &http.Server{
		Handler:           st,
		ReadHeaderTimeout: 5 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			ctx = context.WithValue(ctx, connKey{}, c)
			if uid, ok := peerOf(c); ok {
				return context.WithValue(ctx, peerKey{}, uid)
			}
			return ctx
		},
	}
	s.RegisterOnShutdown(st.end)
	return s
}

func peerOf(c net.Conn) (uid uint32, ok bool) {
	u, isUnix := c.(*net.UnixConn)
	if !isUnix {
		return 0, false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, false
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return 0, false
	}
	return cred.Uid, true
}

// Handle serves POSTs of In with answers of Out to peers with one of the user
// ids. Unknown fields are refused. An error that is no [*Error] is a 500.
func Handle[In, Out any](allowed []uint32, f func(context.Context, In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !permitted(r.Context(), allowed) {
			reply(w, http.StatusForbidden, &Error{Text: "this user may not call " + r.URL.Path})
			return
		}
		var in In
		if r.Method == http.MethodPost {
			dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&in); err != nil {
				reply(w, http.StatusBadRequest, &Error{Text: "reading the request: " + err.Error()})
				return
			}
		}
		out, err := f(r.Context(), in)
		if err == nil {
			reply(w, http.StatusOK, out)
			return
		}
		var refusal *Error
		if !errors.As(err, &refusal) {
			refusal = &Error{Status: http.StatusInternalServerError, Text: err.Error()}
		}
		if refusal.Status == 0 {
			refusal.Status = http.StatusConflict
		}
		reply(w, refusal.Status, refusal)
	})
}

// permitted reports whether the peer has one of the user ids.
func permitted(ctx context.Context, allowed []uint32) bool {
	uid, ok := Peer(ctx)
	return ok && slices.Contains(allowed, uid)
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller has gone: nothing to tell it
}

// Client calls one control socket. It is safe for use by many goroutines.
type Client struct {
	path string

	mu   sync.Mutex // guards idle
	idle []net.Conn // streams without a call
}

// NewClient returns a client of the socket at path. Nothing is dialled yet.
func NewClient(path string) *Client { return &Client{path: path} }

// Call sends in to an operation and reads the answer into out, unless nil. A
// refusal by the other side is a [*Error].
func (c *Client) Call(ctx context.Context, op string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("calling %s: %w", op, err)
	}
	status, data, err := c.exchange(ctx, op, body)
	if err != nil {
		return fmt.Errorf("calling %s at %s: %w", op, c.path, err)
	}
	defer clear(data) // there may be a secret in it
	if status != http.StatusOK {
		refusal := &Error{Status: status}
		if err := json.Unmarshal(data, refusal); err != nil || refusal.Text == "" {
			refusal.Text = http.StatusText(status)
		}
		return refusal
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("calling %s at %s: %w", op, c.path, err)
	}
	return nil
}

// Close drops idle connections.
func (c *Client) Close() {
	c.mu.Lock()
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	for _, conn := range idle {
		_ = conn.Close()
	}
}
