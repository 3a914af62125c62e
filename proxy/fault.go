package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"sallyport/rules"
	"sallyport/rules/gate"
)

// upstreamError is a fault of upstream that was found here.
type upstreamError struct {
	class string
	err   error
}

func (e *upstreamError) Error() string       { return e.err.Error() }
func (e *upstreamError) Unwrap() error       { return e.err }
func (e *upstreamError) ProxyStatus() string { return e.class }

// refusedBy returns the reason if err is a refusal, and "" if it is a fault.
func refusedBy(err error) rules.Reason {
	if denied, ok := errors.AsType[*gate.DeniedError](err); ok {
		return denied.Reason
	}
	return ""
}

// faultOf words an error of Dial or Forward: a refusal, or a fault of
// upstream, whose status is never 403.
func faultOf(err error, pass gate.Pass, about subject) denial {
	if denied, ok := errors.AsType[*gate.DeniedError](err); ok {
		return denialOf(&gate.DeniedError{Reason: denied.Reason, ID: pass.ID(), Decision: denied.Decision}, pass.Identity().Cell, about)
	}
	d := denial{id: pass.ID(), class: classOf(err), status: http.StatusBadGateway}
	what := "failed"
	switch d.class {
	case "dns_timeout", "connection_timeout", "connection_read_timeout", "connection_write_timeout", "http_response_timeout":
		d.status, what = http.StatusGatewayTimeout, "did not answer in time"
	case "dns_error":
		what = "has no address"
	case "connection_refused":
		what = "refused the connection"
	case "connection_terminated", "http_response_incomplete":
		what = "broke off the connection"
	case "tls_certificate_error":
		what = "has a certificate that cannot be verified"
	case "tls_protocol_error", "tls_alert_received":
		what = "could not agree on TLS"
	case "destination_unavailable", "destination_ip_unroutable", "destination_not_found":
		what = "cannot be reached"
	case "http_upgrade_failed", "http_protocol_error":
		what = "answered with something that is not a valid answer"
	}
	d.sentence = fmt.Sprintf("Upstream fault (the request was allowed by policy): %s: %s %s [%s, request %s].",
		about, about.endpoint, what, d.class, d.id)
	return d
}

// classOf returns the error type of RFC 9209 section 2.3 that an error names,
// of those that it may name: the text goes into a header.
func classOf(err error) string {
	var known interface{ ProxyStatus() string }
	if errors.As(err, &known) {
		if c := known.ProxyStatus(); isClass(c) {
			return c
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || os.IsTimeout(err) {
		return "connection_timeout"
	}
	return "proxy_internal_error"
}

func isClass(s string) bool {
	for i := range len(s) {
		if c := s[i]; !('a' <= c && c <= 'z' || c == '_') {
			return false
		}
	}
	return s != ""
}
