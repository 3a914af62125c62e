package export_test

import (
	"bytes"
	"encoding/json"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/har"

	"sallyport/audit"
)

// TestHARIsReadByAnother decodes the archive into the types that Chrome's
// protocol generator makes of HAR 1.2, which refuse members they do not know.
// Only those that start with an underscore are taken away before: the format
// leaves them to whoever writes a file.
func TestHARIsReadByAnother(t *testing.T) {
	recs := records(t)
	d := json.NewDecoder(bytes.NewReader(withoutOwn(t, write(t, "har", recs))))
	d.DisallowUnknownFields()
	var got har.HAR
	if err := d.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.Log.Version != "1.2" || got.Log.Creator.Name != "Sallyport" || got.Log.Creator.Version != "1.2.3" {
		t.Errorf("the log is of %s, by %+v", got.Log.Version, got.Log.Creator)
	}
	entries := got.Log.Entries
	for _, r := range recs {
		if r.Method == "" || r.Kind != audit.Done && r.Kind != audit.Refuse {
			continue
		}
		if len(entries) == 0 {
			t.Fatalf("no entry for record %d", r.Seq)
		}
		sameEntry(t, r, entries[0])
		entries = entries[1:]
	}
	if len(entries) > 0 {
		t.Errorf("%d entries of no record", len(entries))
	}
}

func sameEntry(t *testing.T, r audit.Record, e *har.Entry) {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, e.StartedDateTime)
	if err != nil || !at.Add(time.Duration(r.Micros)*time.Microsecond).Equal(r.Time) {
		t.Errorf("record %d began at %s, %v", r.Seq, e.StartedDateTime, err)
	}
	// "This is the sum of all timings", in milliseconds.
	if sum := e.Timings.Send + e.Timings.Wait + e.Timings.Receive; math.Abs(sum-e.Time) > 1e-9 || e.Time != float64(r.Micros)/1000 {
		t.Errorf("record %d took %v, and its parts %v", r.Seq, e.Time, sum)
	}
	u, err := url.Parse(e.Request.URL)
	if err != nil || u.Hostname() != r.Host || u.EscapedPath() == "" && r.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		t.Errorf("record %d asked for %q, %v", r.Seq, e.Request.URL, err)
	}
	if e.Request.Method != r.Method || e.Request.BodySize != r.Sent || e.Request.HeadersSize != -1 {
		t.Errorf("record %d asked %+v", r.Seq, e.Request)
	}
	if e.Response.Status != int64(r.Status) || e.Response.Content.Size != r.Received || e.Response.HeadersSize != -1 {
		t.Errorf("record %d was answered %+v", r.Seq, e.Response)
	}
	if e.ServerIPAddress != "" && !strings.Contains(r.Addr, e.ServerIPAddress) || e.ServerIPAddress == "" && r.Addr != "" {
		t.Errorf("record %d was dialled at %q", r.Seq, e.ServerIPAddress)
	}
	if e.Comment != r.Error {
		t.Errorf("record %d has the comment %q", r.Seq, e.Comment)
	}
}

// withoutOwn takes the members that start with an underscore out of each entry.
func withoutOwn(t *testing.T, text []byte) []byte {
	t.Helper()
	var doc struct {
		Log map[string]any `json:"log"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, e := range doc.Log["entries"].([]any) {
		entry := e.(map[string]any)
		for name := range entry {
			if strings.HasPrefix(name, "_") {
				delete(entry, name)
				own++
			}
		}
	}
	if own == 0 {
		t.Error("no entry tells its record")
	}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
