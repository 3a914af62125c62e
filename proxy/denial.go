package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/target"
)

// subject is what a refusal is about.
type subject struct {
	method   string // sandbox-controlled: a token
	endpoint target.Endpoint
	path     target.Path
	ask      *http.Request // for the form of the answer; nil for a CONNECT
	secure   bool          // it came in TLS
	by       string        // who refuses it, in words, if not the policy
}

// String writes method, place and path, never query or body, in printable
// ASCII: no field of it can hold anything else. It is bounded.
func (s subject) String() string {
	if s.endpoint.Host.IsZero() {
		return "the request"
	}
	method := cut(s.method, 24)
	port := defaultPort(s.secure)
	if s.ask == nil {
		port = 0
	}
	return strings.TrimSpace(method + " " + s.endpoint.Authority(port) + cut(s.path.String(), 200))
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// denial is an answer that is ours and not upstream's.
type denial struct {
	status   int
	reason   string // Sallyport-Reason, "" for a fault of upstream
	class    string // error type of RFC 9209 section 2.3
	id       string
	rule     string
	scope    string // which spoke, "" for the policy
	sentence string
	retry    int // seconds, 0 for none
}

const notAllowed = "is not allowed"

// kindOf says how each reason is answered. A reason that is not here is a
// matter of policy: 403.
func kindOf(r rules.Reason) (status int, class, what string) {
	switch r {
	case rules.BadRequest:
		return http.StatusBadRequest, "http_request_error", "cannot be understood, or contradicts itself"
	case rules.AuthorityMismatch:
		return http.StatusMisdirectedRequest, "http_request_error", "names another host than the connection that it came on"
	case rules.Limit:
		return http.StatusTooManyRequests, "connection_limit_reached", "is over a limit"
	case rules.BodyTooLarge:
		return http.StatusRequestEntityTooLarge, "http_request_error", "has a larger body than is allowed"
	case rules.HeadTooLarge:
		return http.StatusRequestHeaderFieldsTooLarge, "http_request_error", "has a larger head (path, query and fields) than is allowed"
	case rules.PrivateIP:
		return http.StatusForbidden, "destination_ip_prohibited", "resolves to an address that is not allowed"
	case rules.PlaceholderLeak:
		return http.StatusForbidden, "http_request_denied", "holds a placeholder for a credential where it does not belong"
	case rules.ForeignCredential:
		return http.StatusForbidden, "http_request_denied", "brings a credential of its own, where the gateway puts one"
	case rules.CredentialNeedsTLS:
		return http.StatusForbidden, "http_request_denied", "would need a credential, which is never sent over plain HTTP; use https"
	case rules.CredentialRevoked:
		return http.StatusForbidden, "http_request_denied", "needs a credential that was revoked"
	case rules.CredentialUnavail, rules.BrokerUnavailable:
		return http.StatusServiceUnavailable, "proxy_internal_error", "needs a credential that cannot be had just now"
	case rules.AuditUnavailable:
		return http.StatusServiceUnavailable, "proxy_internal_error", "cannot be recorded just now, and what is not recorded is not allowed"
	default:
		return http.StatusForbidden, "http_request_denied", notAllowed
	}
}

// denialOf words a refusal.
func denialOf(e *gate.DeniedError, cell string, about subject) denial {
	status, class, what := kindOf(e.Reason)
	if bound := beyondHead(e.Err); bound != "" {
		status, class, what = http.StatusRequestHeaderFieldsTooLarge, "http_request_error", "has a head that is over a limit: "+bound
	}
	d := denial{status: status, class: class, reason: string(e.Reason), id: e.ID, rule: e.Decision.Rule}
	d.scope, about.by = scopeOf(e.Decision.Scope)
	var b strings.Builder
	b.WriteString("Blocked by sandbox egress policy (not a network fault): ")
	fmt.Fprintf(&b, "%s %s", about, what)
	if what == notAllowed {
		fmt.Fprintf(&b, " for %q", cell)
	}
	fmt.Fprintf(&b, "%s [%s, request %s].", about.by, e.Reason, e.ID)
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		// At least a little; a limit may know how long.
		d.retry = max(5, int((e.Wait+time.Second-1)/time.Second))
		b.WriteString(" Wait " + strconv.Itoa(d.retry) + " seconds before you try again.")
	case http.StatusForbidden:
		b.WriteString(" Do not retry or route around it. ")
		if e.Reason.Askable() {
			b.WriteString("To ask a human: POST http://" + rules.Reserved + requestsPath +
				` {"request":"` + e.ID + `","reason":"..."}; what is allowed: GET http://` + rules.Reserved + policyPath + ".")
		} else {
			b.WriteString("No approval changes that. What is allowed: GET http://" + rules.Reserved + policyPath + ".")
		}
	default:
		if fault := rules.MethodFault(about.method); fault != "" && rules.IsToken(about.method) {
			fmt.Fprintf(&b, " The method: %s.", fault)
		}
		b.WriteString(" Do not retry it unchanged.")
	}
	d.sentence = b.String()
	return d
}

// scopeOf returns the scope that spoke and how to say so, nothing for the policy
// and for what stands in no file.
func scopeOf(scope string) (name, words string) {
	switch scope {
	case rules.FloorScope.String():
		return scope, ", by the floor of the organisation"
	case rules.RunScope.String():
		return scope, ", by what narrows this run"
	case rules.ApprovalScope.String():
		return scope, ", by the approval that there was"
	default:
		return "", ""
	}
}

// header sets what every answer of ours has.
func (d denial) header(h http.Header) {
	details := "request=" + d.id
	if d.reason != "" {
		details = "reason=" + d.reason + "; rule=" + orNone(d.rule) + "; " + details
		if d.scope != "" {
			details = "scope=" + d.scope + "; " + details
		}
		h.Set(headerReason, d.reason)
		h.Set(headerDeny, d.reason)
	}
	h.Set(headerStatus, "sallyport; error="+d.class+"; details="+strconv.Quote(details))
	h.Set(headerRequest, d.id)
	h.Set("Cache-Control", "no-store")
	if d.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(d.retry))
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// write answers r in the form that its client shows to people, and returns
// the status that was sent.
func (d denial) write(w http.ResponseWriter, r *http.Request) int {
	contentType, body := d.body(r)
	h := w.Header()
	status := d.status
	if strings.HasPrefix(contentType, "application/grpc") {
		// Trailers-Only: one header block with the status in it.
		h.Set("Grpc-Status", grpcStatus(d.status))
		h.Set("Grpc-Message", grpcEscape(d.sentence))
		if d.retry > 0 { // which is how its clients are told when, and not by Retry-After
			h.Set("Grpc-Retry-Pushback-Ms", strconv.Itoa(d.retry*1000))
		}
		status = http.StatusOK
		if r.ProtoMajor == 1 {
			h.Set("Content-Length", "0")
		}
	} else {
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	h.Set("Content-Type", contentType)
	w.WriteHeader(status)
	if r.Method != http.MethodHead && body != "" {
		_, _ = io.WriteString(w, body) //nolint:gosec // G705: encoded, with nosniff; of the request only what was parsed is in it
	}
	return status
}

// grpcStatus returns the code for which a gRPC client does with an answer what an
// HTTP client does with its status: UNAVAILABLE alone is tried again (ADR-0047).
func grpcStatus(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "3" // INVALID_ARGUMENT
	case http.StatusForbidden, http.StatusMisdirectedRequest:
		return "7" // PERMISSION_DENIED
	case http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge:
		return "8" // RESOURCE_EXHAUSTED
	default: // a limit that passes, the machinery, upstream
		return "14" // UNAVAILABLE
	}
}

// answerReset is how records say that a client was told nothing, and its
// connection reset.
const answerReset = "reset"

// Tells implements [gate.Teller]: it says what [denial.write], [http1.reject] and
// [connectReply.deny] will answer.
func (st *stream) Tells(req *rules.Request, reason rules.Reason, cause error) (status int, answer string) {
	status, _, _ = kindOf(reason)
	if beyondHead(cause) != "" {
		status = http.StatusRequestHeaderFieldsTooLarge
	}
	switch {
	case reason == rules.ClientGone, errors.Is(cause, errPanic):
		return 0, ""
	case errors.Is(cause, errHead):
		return headStatus(cause), ""
	case req.Question == rules.Fetch && isGRPC(req.Header):
		return http.StatusOK, "grpc-status " + grpcStatus(status)
	case req.Question == rules.Fetch, st.reply != nil:
		return status, ""
	default:
		return 0, answerReset
	}
}

// grpcEscape is the percent-encoding of Grpc-Message.
func grpcEscape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
