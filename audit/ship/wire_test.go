package ship_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"sallyport/audit"
	"sallyport/audit/export"
	"sallyport/audit/query"
	"sallyport/audit/ship"
)

// otlpReceiver decodes with the code that is generated from OpenTelemetry's own
// definition, and answers as it is told.
func otlpReceiver(t *testing.T, c *collector, answer func(http.ResponseWriter) bool) *ship.OTLP {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var msg logspb.LogsData // an ExportLogsServiceRequest by another name
		if err == nil {
			err = protojson.Unmarshal(body, &msg)
		}
		if err != nil || r.URL.Path != "/v1/logs" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Authorization") != "Bearer t" {
			t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
			http.Error(w, "bad", http.StatusBadRequest)
			return
		}
		if !answer(w) {
			return
		}
		var recs []audit.Record
		for _, l := range msg.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			for _, a := range l.GetAttributes() {
				if a.GetKey() == "sallyport.seq" {
					recs = append(recs, audit.Record{Seq: uint64(a.GetValue().GetIntValue())})
				}
			}
		}
		if err := c.send(r.Context(), recs); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	client := s.Client()
	t.Cleanup(client.CloseIdleConnections)
	return &ship.OTLP{URL: s.URL + "/v1/logs", Header: http.Header{"Authorization": {"Bearer t"}}, Do: client.Do, Export: export.Config{Version: "1"}}
}

func TestOTLP(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 40)
	calls := 0
	o := otlpReceiver(t, c, func(w http.ResponseWriter) bool {
		switch calls++; calls {
		case 2: // a token that ran out: nothing is dropped for it
			http.Error(w, "token expired", http.StatusUnauthorized)
			return false
		case 3:
			w.Header().Set("Retry-After", "0")
			http.Error(w, "slow down", http.StatusTooManyRequests)
			return false
		case 4:
			http.Error(w, "restarting", http.StatusServiceUnavailable)
			return false
		}
		fmt.Fprint(w, "{}")
		return true
	})
	cfg := l.config(c)
	cfg.Send = o.Send
	stop := shipping(t, cfg)
	c.until(t, "all records", func() bool { return len(c.got) == 41 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(upTo(41), c.got); diff != "" {
		t.Errorf("shipped (-want +got):\n%s", diff)
	}
	for _, n := range c.told {
		if n.Dropped != 0 {
			t.Errorf("told %+v", n)
		}
	}
}

func TestOTLPThatRefusesIsTold(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		status       int
		want         int64 // that are dropped of a batch of four
		said         string
	}{
		{"partial success", `{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"too old"}}`, 200, 3, "too old"},
		{"partial success, as a number", `{"partialSuccess":{"rejectedLogRecords":3}}`, 200, 3, ""},
		{"a warning alone", `{"partialSuccess":{"errorMessage":"you should upgrade"}}`, 200, 0, ""},
		{"bad data", "what is \x1b[2Jthis", 400, 0, `what is \x1b[2Jthis`},
		{"too large", "", 413, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCollector()
			o := otlpReceiver(t, c, func(w http.ResponseWriter) bool {
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.answer)
				return true
			})
			err := o.Send(t.Context(), []audit.Record{{Time: start}, {Time: start}, {Time: start}, {}})
			no, rejected := errors.AsType[*ship.RejectedError](err)
			if rejected != (tt.want > 0 || tt.status != 200) || rejected && (no.Count != tt.want || !strings.Contains(no.Err.Error(), tt.said)) {
				t.Errorf("Send = %+v", err)
			}
		})
	}
}

// syslogReceiver is an RFC 5425 collector: it reads frames by their counted
// octets and takes them apart by the grammar of RFC 5424.
type syslogReceiver struct {
	t     *testing.T
	l     net.Listener
	roots *x509.CertPool
	c     *collector
	limit int // frames until it closes its first connection; 0 for never
}

var frame5424 = regexp.MustCompile(`^<(\d{1,3})>1 (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}Z) ([!-~]{1,255}) ([!-~]{1,48}) ([!-~]{1,128}) ([!-~]{1,32}) \[meta sequenceId="([1-9]\d*)"\] (.*)$`)

func newSyslogReceiver(t *testing.T, c *collector, limit int) *syslogReceiver {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"collector.test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s := &syslogReceiver{t: t, c: c, roots: x509.NewCertPool(), limit: limit}
	s.roots.AddCert(cert)
	s.l, err = tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := s.l.Accept()
			if err != nil {
				return
			}
			s.serve(conn)
			s.limit = 0
		}
	}()
	t.Cleanup(func() { s.l.Close(); <-done })
	return s
}

// serve reads frames until the peer or the limit ends it.
func (s *syslogReceiver) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for n := 0; s.limit == 0 || n < s.limit; n++ {
		count, err := in.ReadString(' ')
		if err != nil {
			return
		}
		size, err := strconv.Atoi(strings.TrimSuffix(count, " "))
		if err != nil || count[0] == '0' {
			s.t.Errorf("a frame that begins with %q", count)
			return
		}
		msg := make([]byte, size)
		if _, err := io.ReadFull(in, msg); err != nil {
			return
		}
		s.message(msg)
	}
}

func (s *syslogReceiver) message(msg []byte) {
	m := frame5424.FindSubmatch(msg)
	if m == nil || bytes.ContainsFunc(msg, func(r rune) bool { return r < ' ' || r > '~' }) {
		s.t.Errorf("no message of RFC 5424: %q", msg)
		return
	}
	var r audit.Record
	if err := json.Unmarshal(m[8], &r); err != nil {
		s.t.Errorf("%v: %s", err, m[8])
	}
	seq, _ := strconv.ParseUint(string(m[7]), 10, 31)
	pri := map[bool]string{true: "108", false: "110"}[query.Denied(&r)]
	if seq != r.Seq+1 || string(m[1]) != pri || string(m[3]) != "gate" || string(m[4]) != "sallyport" || string(m[6]) != string(r.Kind) {
		s.t.Errorf("the head of %s does not fit it", msg)
	}
	if err := s.c.send(s.t.Context(), []audit.Record{r}); err != nil {
		s.t.Error(err)
	}
}

func (s *syslogReceiver) client(name string) *ship.Syslog {
	return &ship.Syslog{Host: "gate", Now: time.Now, Dial: func(ctx context.Context) (net.Conn, error) {
		d := tls.Dialer{Config: &tls.Config{RootCAs: s.roots, ServerName: name}}
		return d.DialContext(ctx, "tcp", s.l.Addr().String())
	}}
}

func TestSyslog(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 40)
	s := newSyslogReceiver(t, c, 0).client("collector.test")
	defer s.Close()
	cfg := l.config(c)
	cfg.Send = s.Send
	stop := shipping(t, cfg)
	c.until(t, "all records", func() bool { return len(c.got) == 41 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(upTo(41), c.got); diff != "" || len(c.told) != 0 {
		t.Errorf("told %v; shipped (-want +got):\n%s", c.told, diff)
	}
}

// A collector that closes in the middle of a batch loses nothing: what was
// written last is written again, and its numbers tell.
func TestSyslogConnectionThatBreaks(t *testing.T) {
	l, c := newLog(t), newCollector()
	l.add(t, 60)
	s := newSyslogReceiver(t, c, 25).client("collector.test")
	defer s.Close()
	cfg := l.config(c)
	cfg.Send = s.Send
	stop := shipping(t, cfg)
	have := func() map[uint64]bool {
		seen := map[uint64]bool{}
		for _, n := range c.got {
			seen[n] = true
		}
		return seen
	}
	// What was written last is known to be lost only when more is written, and what is
	// added may be lost as well: it was written before the collector closed.
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		c.mu.Lock()
		n := len(have())
		c.mu.Unlock()
		if n >= 61 {
			break
		}
		l.add(t, 1)
		select {
		case <-c.more:
		case <-again.C:
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for seq := range uint64(61) {
		if !have()[seq] {
			t.Errorf("record %d was lost", seq)
		}
	}
}

func TestSyslogRefusesAnotherCertificate(t *testing.T) {
	s := newSyslogReceiver(t, newCollector(), 0).client("somebody.else")
	defer s.Close()
	if err := s.Send(t.Context(), make([]audit.Record, 1)); err == nil {
		t.Error("records were sent to whoever")
	}
}
