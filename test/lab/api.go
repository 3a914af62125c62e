package lab

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// quiet keeps what net/http thinks of hostile clients off the screen; what
// matters is in Seen.
var quiet = log.New(io.Discard, "", 0)

// apiHandler is an API that wants to see its token, and answers 401 without a
// word about anything else if it does not:
//
//	/basic/…             in the password of Basic authentication, user "lab"
//	/key/…               in X-Api-Key
//	everywhere else      Authorization: Bearer
//
// It serves:
//
//	/v1/reflect          the header that authenticated, in the body and in X-Reflected
//	/v1/events           server-sent events: ?n= (3) ?every=duration (10ms)
//	/v1/ws               WebSocket echo
//	/v1/download         ?bytes= (1 MiB), in pieces
//	/v1/upload           counts and hashes what it gets
//	/v1/trailers         a body, then the trailer X-Checksum
//	/v1/early            an informational 103 first
//	/v1/redirect         ?to= ?code= (302)
//	/v1/status           ?code=
//	/v1/slow             ?after=duration
//	anything else        what it got, as JSON
func apiHandler(token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/reflect", reflect)
	mux.HandleFunc("/v1/events", events)
	mux.HandleFunc("/v1/ws", echoWebSocket)
	mux.HandleFunc("/v1/download", download)
	mux.HandleFunc("/v1/upload", upload)
	mux.HandleFunc("/v1/trailers", trailers)
	mux.HandleFunc("/v1/early", early)
	mux.HandleFunc("/v1/redirect", redirect)
	mux.HandleFunc("/v1/status", status)
	mux.HandleFunc("/v1/slow", slow)
	mux.HandleFunc("/", echo)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !authentic(r, token) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="lab"`)
			writeJSON(w, http.StatusUnauthorized, map[string]any{"error": "bad or missing token"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func authentic(r *http.Request, token string) bool {
	same := func(got string) bool { return subtle.ConstantTimeCompare([]byte(got), []byte(token)) == 1 }
	switch {
	case strings.HasPrefix(r.URL.Path, "/basic/"):
		user, pass, ok := r.BasicAuth()
		return ok && user == "lab" && same(pass)
	case strings.HasPrefix(r.URL.Path, "/key/"):
		return same(r.Header.Get("X-Api-Key"))
	default:
		got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		return ok && same(got)
	}
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// echo says what came, without the values of headers.
func echo(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"site": APIName, "method": r.Method, "path": r.URL.EscapedPath(), "query": r.URL.RawQuery,
		"proto": r.Proto, "headers": slices.Sorted(maps.Keys(r.Header)), "body_bytes": n,
	})
}

// reflect gives the secret away, as some real API's error pages do.
func reflect(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Reflected", r.Header.Get("Authorization"))
	writeJSON(w, http.StatusOK, map[string]any{"authorization": r.Header.Get("Authorization")})
}

func events(w http.ResponseWriter, r *http.Request) {
	n, every := number(r, "n", 3), duration(r, "every", 10*time.Millisecond)
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range n {
		if _, err := fmt.Fprintf(w, "id: %d\ndata: {\"n\":%d,\"at\":%d}\n\n", i, i, time.Now().UnixNano()); err != nil {
			return
		}
		if err := rc.Flush(); err != nil || i == n-1 {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

func echoWebSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		InsecureSkipVerify: true, // of the Origin header: any client may come
		CompressionMode:    websocket.CompressionContextTakeover,
	})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for {
		kind, data, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, data); err != nil {
			return
		}
	}
}

func download(w http.ResponseWriter, r *http.Request) {
	left := number(r, "bytes", 1<<20)
	w.Header().Set("Content-Length", strconv.Itoa(left))
	piece := make([]byte, 64<<10)
	for i := range piece {
		piece[i] = byte(i)
	}
	for left > 0 {
		n, err := w.Write(piece[:min(left, len(piece))])
		if err != nil {
			return
		}
		left -= n
	}
}

func upload(w http.ResponseWriter, r *http.Request) {
	h := sha256.New()
	n, err := io.Copy(h, r.Body)
	if err != nil {
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"bytes": n, "sha256": hex.EncodeToString(h.Sum(nil)), "trailer": r.Trailer})
}

func trailers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Trailer", "X-Checksum")
	_, _ = io.WriteString(w, "body\n")
	w.Header().Set("X-Checksum", "5d41402a")
}

func early(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Link", "</style.css>; rel=preload")
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	_, _ = io.WriteString(w, "late\n")
}

func redirect(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Location", r.URL.Query().Get("to"))
	w.WriteHeader(number(r, "code", http.StatusFound))
}

func status(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, number(r, "code", http.StatusOK), map[string]any{"error": "as asked"})
}

func slow(w http.ResponseWriter, r *http.Request) {
	t := time.NewTimer(duration(r, "after", time.Second))
	defer t.Stop()
	select {
	case <-t.C:
		_, _ = io.WriteString(w, "at last\n")
	case <-r.Context().Done():
	}
}

func number(r *http.Request, key string, def int) int {
	n, err := strconv.Atoi(r.URL.Query().Get(key))
	if err != nil || n < 0 {
		return def
	}
	return n
}

func duration(r *http.Request, key string, def time.Duration) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get(key))
	if err != nil || d <= 0 {
		return def
	}
	return d
}

// loot is what a server has for whoever should not have come.
func loot(who string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{
			"site": who, "path": r.URL.Path, "AccessKeyId": "AKIALABLABLABLAB", "SecretAccessKey": "lab-loot",
		})
	})
}
