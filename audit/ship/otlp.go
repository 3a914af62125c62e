package ship

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"sallyport/audit"
	"sallyport/audit/export"
	"sallyport/audit/query"
)

// OTLP hands records to a collector as OTLP/HTTP takes logs (OpenTelemetry
// Protocol 1, section OTLP/HTTP), in JSON.
type OTLP struct {
	URL    string      // the whole of it, such as https://collector.example/v1/logs
	Header http.Header // what the collector asks for beside, such as an Authorization
	Do     func(*http.Request) (*http.Response, error)
	Export export.Config
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 10

// Send implements the Send of [Config].
func (o *OTLP) Send(ctx context.Context, recs []audit.Record) error {
	var body bytes.Buffer
	each := func(yield func(audit.Record, error) bool) {
		for _, r := range recs {
			if !yield(r, nil) {
				return
			}
		}
	}
	if _, err := export.Write(&body, "otlp", each, o.Export); err != nil {
		return &RejectedError{Err: err}
	}
	for msg := range bytes.Lines(body.Bytes()) { // one, unless a batch is larger than a message
		if err := o.post(ctx, msg); err != nil {
			return err
		}
	}
	return nil
}

func (o *OTLP) post(ctx context.Context, msg []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL, bytes.NewReader(msg))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, o.Header)
	req.Header.Set("Content-Type", "application/json")
	resp, err := o.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the collector's answer: %w", err)
	}
	return judge(resp, text)
}

// judge says what an answer means. Beyond what the protocol calls retryable, a
// refusal that is about us and not about the records (a token, a path) is one
// that somebody may mend: nothing is dropped for it.
func judge(resp *http.Response, text []byte) error {
	why := fmt.Errorf("%s: %s", resp.Status, query.Printable(string(text[:min(len(text), 200)])))
	switch resp.StatusCode {
	case http.StatusOK:
		return partial(text)
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return &RejectedError{Err: why}
	}
	if after, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16); err == nil {
		return &LaterError{time.Duration(after) * time.Second, why}
	}
	return why
}

// partial reads how many records the collector did not take.
func partial(text []byte) error {
	var answer struct {
		Partial struct {
			Rejected json.Number `json:"rejectedLogRecords"` // a number, or one as a string
			Message  string      `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if len(bytes.TrimSpace(text)) == 0 || json.Unmarshal(text, &answer) != nil {
		return nil // taken, by somebody who says it in his own way
	}
	if n, err := answer.Partial.Rejected.Int64(); err == nil && n > 0 {
		return &RejectedError{n, errors.New(query.Printable(answer.Partial.Message))}
	}
	return nil
}
