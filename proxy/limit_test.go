package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestLimitIsTold: over the limit of its rule a request gets 429, the reason,
// and how long to wait, and nothing is dialled for it.
func TestLimitIsTold(t *testing.T) {
	l := newLab(t)
	l.setPolicy(`apiVersion: sallyport/v1
kind: Policy
metadata: {name: lab}
rules:
  - {id: few, reason: x, allow: {host: few.test, ports: [80]}, limits: {requests: 1/day}}
`)
	get := func() (*http.Response, string) {
		c, err := l.flow(t.Context(), "few.test:80")
		must(t, err)
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(patience)))
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: few.test\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp, string(body)
	}
	if resp, _ := get(); resp.StatusCode != http.StatusBadGateway { // admitted, and nobody is there
		t.Fatalf("the first: %s", resp.Status)
	}
	l.mu.Lock()
	dials := len(l.dials)
	l.mu.Unlock()
	resp, body := get()
	wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode != http.StatusTooManyRequests || err != nil || wait < 5 || wait > 86400+1440 ||
		resp.Header.Get("Sallyport-Reason") != "limit" || !strings.Contains(body, fmt.Sprintf("Wait %d seconds", wait)) {
		t.Errorf("the second: %s %v\n%s", resp.Status, resp.Header, body)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.dials) != dials {
		t.Error("it was dialled")
	}
}
