package dial

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sallyport/proxy/h1"
)

// ErrNoPass is the cause when there is no pass to dial with: the zero Pass,
// one that is done, a stream that is to be inspected, or a request that is not
// the one admitted.
var ErrNoPass = errors.New("no pass to dial with")

// The error types of RFC 9209 section 2.3 that are told apart here.
const (
	statusDNS            = "dns_error"
	statusDNSTimeout     = "dns_timeout"
	statusUnavailable    = "destination_unavailable"
	statusUnroutable     = "destination_ip_unroutable"
	statusRefused        = "connection_refused"
	statusTerminated     = "connection_terminated"
	statusTimeout        = "connection_timeout"
	statusLimit          = "connection_limit_reached"
	statusTLS            = "tls_protocol_error"
	statusCertificate    = "tls_certificate_error"
	statusAlert          = "tls_alert_received"
	statusRequest        = "http_request_error"
	statusResponse       = "http_protocol_error"
	statusResponseHeader = "http_response_header_section_size"
	statusResponseTime   = "http_response_timeout"
	statusInternal       = "proxy_internal_error"
)

// Error says what failed on the way out and whose fault it was.
type Error struct {
	Op     string // resolving, dialling, requesting
	To     string // name or address, "" if there is none
	Status string // error type of RFC 9209 section 2.3
	Err    error
}

// Error implements error.
func (e *Error) Error() string {
	if e.To == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("%s %s: %v", e.Op, e.To, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ProxyStatus returns the error type for a Proxy-Status header (RFC 9209).
func (e *Error) ProxyStatus() string { return e.Status }

// Timeout reports whether upstream was too slow: 504 rather than 502.
func (e *Error) Timeout() bool {
	return e.Status == statusDNSTimeout || e.Status == statusTimeout || e.Status == statusResponseTime
}

// connectError says why a connection to an address could not be opened.
func connectError(to string, err error) error {
	e := &Error{Op: "dialling", To: to, Status: statusUnavailable, Err: err}
	switch {
	case errors.Is(err, context.Canceled):
		e.Status = statusRequest // the client went away
	case errors.Is(err, unix.ECONNREFUSED):
		e.Status = statusRefused
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EACCES),
		errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		e.Status = statusUnroutable
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		e.Status = statusLimit
	case errors.Is(err, unix.ECONNRESET):
		e.Status = statusTerminated
	case isTimeout(err):
		e.Status = statusTimeout
	}
	return e
}

// moreTelling chooses between two failed addresses: that one family has no
// route is the rule on many machines, and hides what happened on the other.
func moreTelling(a, b error) error {
	var e *Error
	if a == nil || errors.As(a, &e) && e.Status == statusUnroutable {
		return b
	}
	return a
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &ne) && ne.Timeout()
}

// requestError classifies what the transport says. Refusals and errors of
// this package pass unchanged; net/http has no types for most of its own.
func requestError(to string, err error) error {
	var known interface{ ProxyStatus() string }
	if errors.As(err, &known) || isDenied(err) {
		return err
	}
	e := &Error{Op: "requesting", To: to, Status: statusResponse, Err: err}
	text := err.Error()
	switch status := tlsStatus(err); {
	case errors.Is(err, context.Canceled):
		e.Status = statusRequest // the client went away
	case status != "":
		e.Status = status
	case strings.Contains(text, "TLS handshake timeout"):
		e.Status = statusTimeout
	case isTimeout(err):
		e.Status = statusResponseTime
	case errors.Is(err, h1.ErrTooLarge), strings.Contains(text, "response headers exceeded"), strings.Contains(text, "response header list larger"):
		e.Status = statusResponseHeader
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET),
		errors.Is(err, unix.EPIPE), strings.Contains(text, "server closed idle connection"):
		e.Status = statusTerminated
	}
	return e
}

// tlsStatus returns the error type of a failed handshake, "" for another error.
func tlsStatus(err error) string {
	var (
		verify *tls.CertificateVerificationError
		record tls.RecordHeaderError
		host   x509.HostnameError
		op     *net.OpError
	)
	switch {
	case errors.As(err, &verify), errors.As(err, &host):
		return statusCertificate
	case errors.As(err, &op) && op.Op == "remote error":
		return statusAlert
	case errors.As(err, &record), errors.As(err, &op) && op.Op == "local error", strings.HasPrefix(err.Error(), "tls: "):
		return statusTLS
	default:
		return ""
	}
}
