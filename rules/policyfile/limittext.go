package policyfile

import (
	"strconv"

	"sallyport/rules"
)

// LimitText writes a limit as a file does: 60/min, 20MiB/day, 8. Name is that
// of the key; a Rate of Period 0 is about a number at a time.
func LimitText(name string, r rules.Rate) string {
	text := strconv.FormatInt(r.N, 10)
	if name == "sent" || name == "received" || name == "request_body" || name == "request_head" {
		text = formatSize(r.N)
	}
	for _, p := range periods {
		if r.Period == p.seconds {
			return text + "/" + p.name
		}
	}
	return text
}

// LimitTexts writes each limit as a file does, by its key.
func LimitTexts(l rules.Limits) map[string]string {
	out := map[string]string{}
	for name, r := range map[string]rules.Rate{
		"requests": l.Requests, "sent": l.Sent, "received": l.Received, "concurrent": {N: l.Concurrent}, "request_body": {N: l.Body}, "request_head": {N: l.Head},
	} {
		if r.N > 0 {
			out[name] = LimitText(name, r)
		}
	}
	return out
}
