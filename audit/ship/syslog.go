package ship

import (
	"context"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/audit/query"
)

// Syslog hands records to a collector as syslog messages (RFC 5424), framed by
// counting octets as RFC 5425 has it over TLS. The message is the record's line
// in the log, in ASCII.
//
// Syslog has no acknowledgement. When a connection breaks, what was written in
// the last half minute is written again on the next one: a collector may get
// records twice, which their seq tells. Dial has to see to it that a connection
// on which nothing arrives breaks sooner (TCP_USER_TIMEOUT).
type Syslog struct {
	Dial func(context.Context) (net.Conn, error)
	Host string // this machine's name
	Now  func() time.Time
	// Timeout bounds how long a batch may take to be written; default 30 s.
	Timeout time.Duration

	conn   net.Conn
	gone   chan struct{} // closed when conn has broken
	recent []written
	size   int // octets in recent
}

// written is a batch that may not have arrived yet.
type written struct {
	at     time.Time
	frames []byte
}

// What was written is kept for so long, and no more than so many octets.
const (
	arrives   = 30 * time.Second
	maxRecent = 16 << 20
)

// Send implements the Send of [Config].
func (s *Syslog) Send(ctx context.Context, recs []audit.Record) error {
	var frames []byte
	for i := range recs {
		msg, err := message(s.Host, &recs[i])
		if err != nil {
			return &RejectedError{Err: err}
		}
		frames = strconv.AppendInt(frames, int64(len(msg)), 10)
		frames = append(append(frames, ' '), msg...)
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	if err := s.write(ctx, frames); err != nil {
		return err
	}
	s.keep(frames)
	return nil
}

// keep notes what was written, and forgets what has arrived by now.
func (s *Syslog) keep(frames []byte) {
	now := s.Now()
	s.recent = append(s.recent, written{now, frames})
	s.size += len(frames)
	for len(s.recent) > 1 && (s.size > maxRecent || now.Sub(s.recent[0].at) > arrives) {
		s.size -= len(s.recent[0].frames)
		s.recent = s.recent[1:]
	}
}

// connect makes sure that there is a connection that has not broken.
func (s *Syslog) connect(ctx context.Context) error {
	if s.conn != nil {
		select {
		case <-s.gone:
			s.Close()
		default:
			return nil
		}
	}
	conn, err := s.Dial(ctx)
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() { // ends with the connection: a collector never says anything
		defer close(gone)
		var one [1]byte
		for {
			if _, err := conn.Read(one[:]); err != nil {
				return
			}
		}
	}()
	s.conn, s.gone = conn, gone
	for _, w := range s.recent {
		if err := s.write(ctx, w.frames); err != nil {
			return err
		}
	}
	return nil
}

func (s *Syslog) write(ctx context.Context, frames []byte) error {
	timeout := s.Timeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn := s.conn
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(frames); err != nil {
		s.Close()
		return err
	}
	return nil
}

// Close closes the connection, if there is one.
func (s *Syslog) Close() {
	if s.conn != nil {
		s.conn.Close()
		<-s.gone
		s.conn = nil
	}
}

// Priorities (RFC 5424, section 6.2.1): facility 13 (log audit), severities 4
// (warning) and 6 (informational).
const (
	facility      = 13
	warning       = 4
	informational = 6
)

// message is one record as RFC 5424, section 6, has it.
func message(host string, r *audit.Record) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	severity := informational
	if query.AboutDenial(r) || r.Kind == audit.Gap || r.Kind == audit.Bypass || r.Kind == audit.Ship {
		severity = warning
	}
	b := append([]byte{'<'}, strconv.Itoa(facility*8+severity)...)
	b = append(b, ">1 "...)
	b = r.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000Z") // at most six digits
	b = append(b, ' ')
	b = append(b, word(host, 255)...)
	b = append(b, " sallyport - "...)
	b = append(b, word(string(r.Kind), 32)...)
	b = append(b, ` [meta sequenceId="`...) // RFC 5424, section 7.3.1: 1 to 2147483647, then 1 again
	b = strconv.AppendUint(b, r.Seq%2147483647+1, 10)
	b = append(b, `"] `...)
	return appendASCII(b, audit.EscapeJSON(line)), nil
}

// word is a PRINTUSASCII of at most limit octets, or the nil value.
func word(s string, limit int) string {
	w := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
	if w == "" {
		return "-"
	}
	return w[:min(len(w), limit)]
}

// appendASCII appends JSON with every other character escaped: with them a
// message would have to begin with a byte order mark.
func appendASCII(dst, text []byte) []byte {
	for _, r := range string(text) {
		switch {
		case r < 0x80:
			dst = append(dst, byte(r))
		case r > 0xffff:
			r -= 0x10000
			dst = appendUnit(appendUnit(dst, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			dst = appendUnit(dst, r)
		}
	}
	return dst
}

// appendUnit appends a UTF-16 code unit as JSON escapes it.
func appendUnit(dst []byte, u rune) []byte {
	const digits = "0123456789abcdef"
	return append(dst, '\\', 'u', digits[u>>12], digits[u>>8&15], digits[u>>4&15], digits[u&15])
}
