package proxy

import (
	"encoding/json"
	"encoding/xml"
	"net/http"
	"strings"
)

const (
	textPlain   = "text/plain; charset=utf-8"
	jsonPlain   = "application/json"
	jsonProblem = "application/problem+json"
)

// body words an answer in the form that the client shows. text/plain is what
// most tools print; the others hide it, and print a field of their own.
func (d denial) body(r *http.Request) (contentType, body string) {
	agent := r.Header.Get("User-Agent")
	switch {
	case isGRPC(r.Header):
		return r.Header.Get("Content-Type"), ""
	case hasAnyPrefix(agent, "npm/", "pnpm/", "yarn/", "Yarn/"):
		return jsonPlain, encode(struct {
			Error string `json:"error"` // npm prints a string, and [object Object] for anything else
		}{d.sentence})
	case isAWS(r, agent):
		return "text/xml", d.aws()
	case strings.HasPrefix(r.URL.Path, "/v2/"), r.URL.Path == "/v2":
		return jsonPlain, encode(struct {
			Errors []ociError `json:"errors"`
		}{[]ociError{{"DENIED", d.sentence}}})
	case isKubernetes(r, agent):
		return jsonPlain, d.kubernetes()
	case isModelAPI(r.Host):
		return jsonPlain, d.modelAPI()
	case wantsJSON(r, agent):
		return jsonProblem, d.problem()
	default:
		return textPlain, d.sentence + "\n"
	}
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("proxy: encoding a refusal: " + err.Error()) // strings and numbers only
	}
	return string(b) + "\n"
}

func isAWS(r *http.Request, agent string) bool {
	return strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-") ||
		hasAnyPrefix(agent, "aws-cli/", "Boto3/", "Botocore/", "aws-sdk-")
}

func (d denial) aws() string {
	type awsError struct {
		Type    string `xml:"Type"`
		Code    string `xml:"Code"`
		Message string `xml:"Message"`
	}
	b, err := xml.Marshal(struct {
		XMLName   xml.Name `xml:"ErrorResponse"`
		Error     awsError `xml:"Error"`
		RequestID string   `xml:"RequestId"`
	}{Error: awsError{"Sender", "SallyportDenied", d.sentence}, RequestID: d.id})
	if err != nil {
		panic("proxy: encoding a refusal: " + err.Error())
	}
	return xml.Header + string(b) + "\n"
}

// ociError is of the OCI distribution specification, "Error Codes".
type ociError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// isGRPC recognises calls whose refusal is a header block of status 200.
func isGRPC(h http.Header) bool { return strings.HasPrefix(h.Get("Content-Type"), "application/grpc") }

// isKubernetes recognises clients that decode a Status and would not show
// anything else.
func isKubernetes(r *http.Request, agent string) bool {
	if hasAnyPrefix(agent, "kubectl/", "helm/", "Helm/") {
		return true
	}
	return strings.Contains(r.Header.Get("Accept"), "as=Table") ||
		strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.kubernetes.")
}

func (d denial) kubernetes() string {
	return encode(struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Status     string `json:"status"`
		Message    string `json:"message"`
		Reason     string `json:"reason"`
		Code       int    `json:"code"`
	}{"Status", "v1", "Failure", d.sentence, "Forbidden", d.status})
}

// isModelAPI recognises the hosts of language models, whose clients print
// error.message.
func isModelAPI(host string) bool {
	host, _, _ = strings.Cut(host, ":")
	switch host {
	case "api.openai.com", "api.anthropic.com":
		return true
	default:
		return strings.HasSuffix(host, ".googleapis.com")
	}
}

func (d denial) modelAPI() string {
	type fault struct {
		Type    string `json:"type"`
		Code    int    `json:"code"`
		Status  string `json:"status"`
		Message string `json:"message"`
	}
	kind, status := "permission_error", "PERMISSION_DENIED"
	if d.status != http.StatusForbidden {
		kind, status = "api_error", "UNAVAILABLE"
	}
	return encode(struct {
		Type      string `json:"type"`
		Error     fault  `json:"error"`
		RequestID string `json:"request_id"`
	}{"error", fault{kind, d.status, status, d.sentence}, d.id})
}

// wantsJSON recognises clients that take JSON and no text: browsers' fetch,
// axios.
func wantsJSON(r *http.Request, agent string) bool {
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, "text/") || hasAnyPrefix(agent, "git/", "Go-http-client", "cargo", "Terraform", "curl/") {
		return false
	}
	return strings.Contains(accept, "application/json") || strings.Contains(accept, "application/problem+json") ||
		r.Header.Get("Sec-Fetch-Mode") != ""
}

// problem is RFC 9457, with the members that gh, crane and others look for.
func (d denial) problem() string {
	title := "Blocked by sandbox egress policy"
	if d.reason == "" {
		title = "Upstream fault"
	}
	return encode(struct {
		Type      string     `json:"type"`
		Title     string     `json:"title"`
		Status    int        `json:"status"`
		Detail    string     `json:"detail"`
		Instance  string     `json:"instance"`
		Error     string     `json:"error"`
		Message   string     `json:"message"`
		Errors    []ociError `json:"errors"`
		Reason    string     `json:"reason,omitempty"`
		Scope     string     `json:"scope,omitempty"`
		RequestID string     `json:"request_id"`
		Next      string     `json:"next"`
	}{
		"about:blank", title, d.status, d.sentence, "urn:ulid:" + d.id, d.sentence, d.sentence,
		[]ociError{{"DENIED", d.sentence}},
		d.reason, d.scope, d.id, "http://sallyport.internal/",
	})
}
