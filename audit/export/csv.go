package export

import (
	"encoding/csv"
	"io"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
)

// columns are the fields of a record as text, in the order of docs/audit.md.
var columns = []struct {
	name string
	of   func(*audit.Record) string
}{
	{"seq", func(r *audit.Record) string { return strconv.FormatUint(r.Seq, 10) }},
	{"time", func(r *audit.Record) string { return r.Time.UTC().Format(time.RFC3339Nano) }},
	{"id", func(r *audit.Record) string { return r.ID }},
	{"kind", func(r *audit.Record) string { return string(r.Kind) }},
	{"ref", func(r *audit.Record) string { return r.Ref }},
	{"cell", func(r *audit.Record) string { return r.Cell }},
	{"run", func(r *audit.Record) string { return r.Run }},
	{"policy", func(r *audit.Record) string { return r.Policy }},
	{"verdict", func(r *audit.Record) string { return r.Verdict }},
	{"reason", func(r *audit.Record) string { return r.Reason }},
	{"would_deny", func(r *audit.Record) string { return r.WouldDeny }},
	{"rule", func(r *audit.Record) string { return r.Rule }},
	{"where", func(r *audit.Record) string { return r.Where }},
	{"scope", func(r *audit.Record) string { return r.Scope }},
	{"credential", func(r *audit.Record) string { return r.Credential }},
	{"event", func(r *audit.Record) string { return r.Event }},
	{"listener", func(r *audit.Record) string { return r.Listener }},
	{"client", func(r *audit.Record) string { return r.Client }},
	{"question", func(r *audit.Record) string { return r.Question }},
	{"proto", func(r *audit.Record) string { return r.Proto }},
	{"host", func(r *audit.Record) string { return r.Host }},
	{"port", func(r *audit.Record) string { return digits(int64(r.Port)) }},
	{"method", func(r *audit.Record) string { return r.Method }},
	{"path", func(r *audit.Record) string { return r.Path }},
	{"query_hash", func(r *audit.Record) string { return r.Query }},
	{"query_values", func(r *audit.Record) string { return r.Values }},
	{"qtype", func(r *audit.Record) string { return r.QType }},
	{"answer", func(r *audit.Record) string { return r.Answer }},
	{"addr", func(r *audit.Record) string { return r.Addr }},
	{"status", func(r *audit.Record) string { return digits(int64(r.Status)) }},
	{"sent", func(r *audit.Record) string { return digits(r.Sent) }},
	{"received", func(r *audit.Record) string { return digits(r.Received) }},
	{"us", func(r *audit.Record) string { return digits(r.Micros) }},
	{"error", func(r *audit.Record) string { return r.Error }},
	{"cut", func(r *audit.Record) string { return strings.Join(r.Cut, " ") }},
	{"data", func(r *audit.Record) string { return string(r.Data) }},
}

// digits is a number; 0 is not said, as in the log.
func digits(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// csvFile is RFC 4180 with a heading.
type csvFile struct {
	w    *csv.Writer
	row  []string
	head bool
}

func newCSV(w io.Writer, _ Config) writer {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	return &csvFile{w: out, row: make([]string, len(columns))}
}

func (c *csvFile) heading() error {
	if c.head {
		return nil
	}
	c.head = true
	for i := range columns {
		c.row[i] = columns[i].name
	}
	return c.w.Write(c.row)
}

func (c *csvFile) record(r *audit.Record) error {
	if err := c.heading(); err != nil {
		return err
	}
	for i := range columns {
		c.row[i] = cell(columns[i].of(r))
	}
	return c.w.Write(c.row)
}

func (c *csvFile) close() error {
	err := c.heading()
	c.w.Flush()
	if err == nil {
		err = c.w.Error()
	}
	return err
}

// cell puts an apostrophe before what a spreadsheet would take for a formula:
// a sandbox writes what stands in most cells. Where a comma is for decimals, a cell
// begins behind a semicolon as well, and quotes are no help if it is not the first.
func cell(s string) string {
	var out strings.Builder
	begins := true
	for i, r := range s {
		if begins && strings.ContainsRune("=+-@\t\r＝＋－＠", r) {
			if out.Len() == 0 {
				out.WriteString(s[:i])
			}
			out.WriteByte('\'')
		}
		if out.Len() > 0 {
			out.WriteRune(r)
		}
		begins = r == ';' || r == '\n' || begins && (r == ' ' || r == '"')
	}
	if out.Len() == 0 {
		return s
	}
	return out.String()
}
