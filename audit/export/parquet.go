package export

import (
	"io"
	"maps"
	"slices"
	"time"

	"github.com/parquet-go/parquet-go"

	"sallyport/audit"
)

// row is a record in a Parquet file: its text columns are dictionaries, its
// pages are zstd.
type row struct {
	Seq        int64     `parquet:"seq,delta"`
	Time       time.Time `parquet:"time,timestamp(nanosecond)"`
	ID         string    `parquet:"id"`
	Kind       string    `parquet:"kind,dict"`
	Ref        string    `parquet:"ref"`
	Cell       string    `parquet:"cell,dict"`
	Run        string    `parquet:"run,dict"`
	Policy     string    `parquet:"policy,dict"`
	Verdict    string    `parquet:"verdict,dict"`
	Reason     string    `parquet:"reason,dict"`
	WouldDeny  string    `parquet:"would_deny,dict"`
	Rule       string    `parquet:"rule,dict"`
	Where      string    `parquet:"where,dict"`
	Scope      string    `parquet:"scope,dict"`
	Credential string    `parquet:"credential,dict"`
	Event      string    `parquet:"event,dict"`
	Listener   string    `parquet:"listener,dict"`
	Client     string    `parquet:"client"`
	Question   string    `parquet:"question,dict"`
	Proto      string    `parquet:"proto,dict"`
	Host       string    `parquet:"host,dict"`
	Port       int32     `parquet:"port"`
	Method     string    `parquet:"method,dict"`
	Path       string    `parquet:"path"`
	Query      string    `parquet:"query_hash"`
	Values     string    `parquet:"query_values"`
	QType      string    `parquet:"qtype,dict"`
	Answer     string    `parquet:"answer"`
	Addr       string    `parquet:"addr,dict"`
	Status     int32     `parquet:"status"`
	Sent       int64     `parquet:"sent"`
	Received   int64     `parquet:"received"`
	Micros     int64     `parquet:"us"`
	Error      string    `parquet:"error"`
	Cut        []string  `parquet:"cut,list"`
	Data       string    `parquet:"data"`
}

type parquetFile struct {
	w   *parquet.GenericWriter[row]
	one [1]row
	n   int
}

func newParquet(w io.Writer, cfg Config) writer {
	return &parquetFile{w: parquet.NewGenericWriter[row](w, parquet.Compression(&parquet.Zstd),
		parquet.CreatedBy("sallyport", cfg.Version, ""))}
}

// perGroup is how many records a row group holds: what has to be in memory.
const perGroup = 50_000

func (p *parquetFile) record(r *audit.Record) error {
	p.one[0] = row{
		int64(r.Seq), r.Time.UTC(), r.ID, string(r.Kind), r.Ref, r.Cell, r.Run, r.Policy, r.Verdict, r.Reason, r.WouldDeny, r.Rule, r.Where,
		r.Scope, r.Credential, r.Event, r.Listener, r.Client, r.Question, r.Proto, r.Host, int32(r.Port), r.Method, r.Path, r.Query,
		r.Values, r.QType, r.Answer, r.Addr, int32(r.Status), r.Sent, r.Received, r.Micros, r.Error, r.Cut, string(r.Data),
	}
	if _, err := p.w.Write(p.one[:]); err != nil {
		return err
	}
	if p.n++; p.n%perGroup == 0 {
		return p.w.Flush()
	}
	return nil
}

func (p *parquetFile) close() error { return p.w.Close() }

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
