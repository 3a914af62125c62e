package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/export"
	"sallyport/audit/query"
	"sallyport/audit/ship"
)

// The files that a shipper finds below the instance's run directory.
const (
	shipCA      = "ca.pem"
	shipCert    = "cert.pem"
	shipKey     = "key.pem"
	shipHeaders = "headers"
)

// collector is where records go: otlp=URL or syslog=tls://HOST:PORT.
type collector struct {
	protocol string
	url      *url.URL
}

const shipExample = "sallyport up --ship otlp=https://collector.example/v1/logs --ship syslog=tls://logs.example:6514"

// parseCollector reads what --ship names. Records are not sent in clear, but to
// this machine, and a secret has no place on a command line.
func parseCollector(text string) (collector, error) {
	protocol, rest, _ := strings.Cut(text, "=")
	u, err := url.Parse(rest)
	switch {
	case err != nil:
	case u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		err = errors.New("not an address of a collector")
	case u.User != nil:
		err = errors.New("a user and password have no place here: --ship-headers FILE")
	case protocol == "otlp":
		err = otlpURL(u)
	case protocol == "syslog":
		err = syslogURL(u)
	default:
		err = errors.New("there are otlp=URL and syslog=tls://HOST:PORT")
	}
	if err != nil {
		return collector{}, usage(hint(fmt.Errorf("--ship %s: %w", text, err), "%s", shipExample))
	}
	return collector{protocol, u}, nil
}

func otlpURL(u *url.URL) error {
	if u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
		return errors.New("OTLP goes over https, or over http to this machine")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/logs"
	}
	return nil
}

func syslogURL(u *url.URL) error {
	if u.Scheme != "tls" || u.Path != "" {
		return errors.New("syslog goes to tls://HOST:PORT")
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "6514") // RFC 5425, section 4.1
	}
	return nil
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

func (c collector) String() string { return c.protocol + "=" + c.url.String() }

// bookmark is the name of the file that keeps how far a collector is.
func (c collector) bookmark() string {
	sum := sha256.Sum256([]byte(c.String()))
	return c.protocol + "-" + hex.EncodeToString(sum[:8])
}

func newShipper() *cobra.Command {
	var to []string
	c := daemonCommand("shipper", "The process that ships records to collectors; started by up",
		func(ctx context.Context, inst instance, log *slog.Logger) error {
			if err := dropPrivileges(); err != nil {
				return err
			}
			return runShipper(ctx, inst, to, log)
		})
	c.Flags().StringArrayVar(&to, "to", nil, "a collector")
	return c
}

// runShipper ships until ctx ends.
func runShipper(ctx context.Context, inst instance, to []string, log *slog.Logger) error {
	ident, err := loadIdentity(inst.run("ship"))
	if err != nil {
		return err
	}
	if err := awaitLog(ctx, inst.auditDir()); err != nil {
		return nil //nolint:nilerr // stopped before there was a log
	}
	var each []func(context.Context) error
	for _, text := range to {
		c, err := parseCollector(text)
		if err != nil {
			return err
		}
		cfg := ship.Config{
			Dir: inst.auditDir(), Bookmark: inst.state("ship", c.bookmark()), Target: c.String(), Now: time.Now,
			Tell: func(ctx context.Context, r audit.Record) error {
				log.Warn("shipping", "collector", c.String(), "notice", string(r.Data), "cause", r.Error)
				return callGateway(ctx, inst, "/v1/ship", r, nil)
			},
		}
		send, done := ident.sender(c)
		cfg.Send = send
		each = append(each, func(ctx context.Context) error {
			defer done()
			return ship.Run(ctx, cfg)
		})
	}
	return serveAll(ctx, each...)
}

// awaitLog waits until a log has begun.
func awaitLog(ctx context.Context, dir string) error {
	for ctx.Err() == nil {
		if _, err := query.Segments(dir); err == nil {
			return nil
		}
		wait(ctx, 200*time.Millisecond)
	}
	return ctx.Err()
}

// identity is how collectors are recognised, and how this machine shows itself.
type identity struct {
	tls    *tls.Config
	header http.Header
}

// loadIdentity reads the files of a directory; none of them has to be there.
func loadIdentity(dir string) (*identity, error) {
	id := &identity{tls: &tls.Config{MinVersion: tls.VersionTLS12}, header: http.Header{}}
	files := map[string][]byte{}
	for _, name := range []string{shipCA, shipCert, shipKey, shipHeaders} {
		data, err := optional(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		files[name] = data
	}
	if err := id.trust(files[shipCA]); err != nil {
		return nil, err
	}
	if cert, key := files[shipCert], files[shipKey]; cert != nil || key != nil {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("the certificate that collectors are shown, and its key: %w", err)
		}
		id.tls.Certificates = []tls.Certificate{pair}
	}
	return id, id.headers(files[shipHeaders])
}

// trust adds authorities to those of the system.
func (id *identity) trust(pem []byte) (err error) {
	if pem == nil {
		return nil
	}
	if id.tls.RootCAs, err = x509.SystemCertPool(); err != nil {
		return fmt.Errorf("reading the system's authorities: %w", err)
	}
	if !id.tls.RootCAs.AppendCertsFromPEM(pem) {
		return errors.New("the authority of the collectors holds no certificate")
	}
	return nil
}

// headers reads NAME: VALUE lines.
func (id *identity) headers(text []byte) error {
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if name == "" && !ok {
			continue // an empty line
		}
		if !ok || strings.TrimSpace(value) == "" {
			return errors.New("a header for collectors is not NAME: VALUE")
		}
		id.header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return nil
}

func optional(path string) ([]byte, error) {
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// sender is the Send of a collector, and what ends it.
func (id *identity) sender(c collector) (send func(context.Context, []audit.Record) error, done func()) {
	host, err := os.Hostname()
	if err != nil {
		host = "" // the default of either
	}
	// A collector that vanishes is noticed before what was written last is forgotten.
	d := &net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 15_000)
		}), err)
	}}
	if c.protocol == "syslog" {
		secure := &tls.Dialer{NetDialer: d, Config: id.tls}
		s := &ship.Syslog{Host: host, Now: time.Now, Dial: func(ctx context.Context) (net.Conn, error) {
			return secure.DialContext(ctx, "tcp", c.url.Host)
		}}
		return s.Send, s.Close
	}
	client := &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			DialContext: d.DialContext, TLSClientConfig: id.tls, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second,
		},
		// Headers with a token are for the collector that was named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	o := &ship.OTLP{URL: c.url.String(), Header: id.header, Do: client.Do, Export: export.Config{Version: version(), Host: host}}
	return o.Send, client.CloseIdleConnections
}
