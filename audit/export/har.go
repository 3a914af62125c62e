package export

import (
	"encoding/json"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
)

// har is an HTTP Archive 1.2: an entry for each request that was refused or
// finished. The log holds no header, query or body, so neither does it.
type har struct {
	w     io.Writer
	cfg   Config
	begun bool
}

func newHAR(w io.Writer, cfg Config) writer { return &har{w: w, cfg: cfg} }

type harEntry struct {
	Started  time.Time   `json:"startedDateTime"`
	Time     float64     `json:"time"` // milliseconds
	Request  harRequest  `json:"request"`
	Response harResponse `json:"response"`
	Cache    struct{}    `json:"cache"`
	Timings  harTimings  `json:"timings"`
	ServerIP string      `json:"serverIPAddress,omitempty"`
	Comment  string      `json:"comment,omitempty"`
	ID       string      `json:"_id"`
	Run      string      `json:"_run,omitempty"`
	Rule     string      `json:"_rule,omitempty"`
	Verdict  string      `json:"_verdict,omitempty"`
	Reason   string      `json:"_reason,omitempty"`
}

type harRequest struct {
	Method      string     `json:"method"`
	URL         string     `json:"url"`
	HTTPVersion string     `json:"httpVersion"`
	Cookies     []struct{} `json:"cookies"`
	Headers     []struct{} `json:"headers"`
	QueryString []struct{} `json:"queryString"`
	HeadersSize int        `json:"headersSize"`
	BodySize    int64      `json:"bodySize"`
}

type harResponse struct {
	Status      int        `json:"status"`
	StatusText  string     `json:"statusText"`
	HTTPVersion string     `json:"httpVersion"`
	Cookies     []struct{} `json:"cookies"`
	Headers     []struct{} `json:"headers"`
	Content     harContent `json:"content"`
	RedirectURL string     `json:"redirectURL"`
	HeadersSize int        `json:"headersSize"`
	BodySize    int64      `json:"bodySize"`
}

type harContent struct {
	Size int64  `json:"size"`
	Mime string `json:"mimeType"`
}

type harTimings struct {
	Send    float64 `json:"send"`
	Wait    float64 `json:"wait"`
	Receive float64 `json:"receive"`
}

func (h *har) head() error {
	if h.begun {
		return nil
	}
	h.begun = true
	creator, err := json.Marshal(map[string]string{"name": "Sallyport", "version": h.cfg.Version})
	if err != nil {
		return err
	}
	_, err = io.WriteString(h.w, `{"log":{"version":"1.2","creator":`+string(creator)+`,"entries":[`)
	return err
}

func (h *har) record(r *audit.Record) error {
	if r.Method == "" || r.Host == "" || r.Kind != audit.Done && r.Kind != audit.Refuse {
		return errNoPlace
	}
	first := !h.begun
	if err := h.head(); err != nil {
		return err
	}
	text, err := json.Marshal(entryOf(r))
	if err != nil {
		return err
	}
	if !first {
		text = append([]byte{','}, text...)
	}
	_, err = h.w.Write(append(text, '\n'))
	return err
}

func entryOf(r *audit.Record) harEntry {
	version := map[string]string{"h1": "HTTP/1.1", "h2": "HTTP/2"}[r.Proto]
	ms := float64(r.Micros) / 1000
	e := harEntry{
		Started: r.Time.UTC().Add(-time.Duration(r.Micros) * time.Microsecond), Time: ms,
		Request: harRequest{
			Method: r.Method, URL: urlOf(r), HTTPVersion: version, Cookies: []struct{}{}, Headers: []struct{}{},
			QueryString: []struct{}{}, HeadersSize: -1, BodySize: r.Sent,
		},
		Response: harResponse{
			Status: r.Status, HTTPVersion: version, Cookies: []struct{}{}, Headers: []struct{}{},
			Content: harContent{Size: r.Received, Mime: "x-unknown"}, HeadersSize: -1, BodySize: r.Received,
		},
		Timings: harTimings{Wait: ms}, Comment: r.Error, ID: r.ID, Run: r.Run, Rule: r.Rule, Verdict: r.Verdict, Reason: r.Reason,
	}
	if r.Ref != "" {
		e.ID = r.Ref
	}
	if ip, _, err := net.SplitHostPort(r.Addr); err == nil {
		e.ServerIP = ip
	}
	return e
}

// urlOf is the URL of a request without its query, which is not in the log.
// Whether it went through TLS is not recorded; plain HTTP has its own port.
func urlOf(r *audit.Record) string {
	scheme, host := "https", r.Host
	if r.Port == 80 || r.Proto == "http" {
		scheme = "http"
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if r.Port != 0 && r.Port != 443 && r.Port != 80 {
		host += ":" + strconv.Itoa(int(r.Port))
	}
	return scheme + "://" + host + r.Path
}

func (h *har) close() error {
	if err := h.head(); err != nil {
		return err
	}
	_, err := io.WriteString(h.w, "]}}\n")
	return err
}
