package answer

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"
)

// domainOf returns the registrable domain of a host, or the host itself.
func domainOf(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return host
	}
	if d, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return d
	}
	return host
}

// entropy is Shannon's, in bits a character.
func entropy(s string) float64 {
	var counts [256]int
	for i := range len(s) {
		counts[s[i]]++
	}
	sum := 0.0
	for _, c := range counts {
		if c > 0 {
			p := float64(c) / float64(len(s))
			sum -= p * math.Log2(p)
		}
	}
	return sum
}

// A label of a name, or a segment of a path, looks random if it is long and
// its characters are spread. Identifiers that APIs put into paths are shorter.
const (
	longLabel   = 20
	longSegment = 60
	spread      = 3.3 // hexadecimal digits reach 4, words rarely 3
	least       = 3   // that many different ones in one domain
)

// randomPart returns the part of s, between separators, that looks random.
func randomPart(s, separator string, long int) string {
	for part := range strings.SplitSeq(s, separator) {
		if len(part) >= long && entropy(part) >= spread && !strings.ContainsAny(part, "-") {
			return part
		}
	}
	return ""
}

// random finds data that is sent out as names or as paths.
func (h *hunt) random() error {
	facts, args := h.span.facts()
	type group struct {
		first  int64
		ids    []string
		parts  map[string]bool
		sample string
	}
	look := func(kind, question string, args []any, long int, sentence string) error {
		groups := map[string]*group{}
		var order []string
		var text, host, id string
		var at int64
		err := h.each(question, args, []any{&text, &host, &at, &id}, func() error {
			separator := "/"
			if kind == RandomName {
				separator = "."
			}
			part := randomPart(text, separator, long)
			if part == "" {
				return nil
			}
			d := domainOf(host)
			g := groups[d]
			if g == nil {
				g = &group{first: at, parts: map[string]bool{}, sample: part}
				groups[d] = g
				order = append(order, d)
			}
			if !g.parts[part] && len(g.ids) < maxIDs {
				g.ids = append(g.ids, id)
			}
			g.parts[part] = true
			return nil
		})
		for _, d := range order {
			if g := groups[d]; len(g.parts) >= least {
				h.add(kind, d, "", g.first, g.ids, sentence, len(g.parts), d, cut(g.sample, 40))
			}
		}
		return err
	}
	err := look(RandomName, `SELECT f.host, f.host, f.first, r.id FROM (SELECT host, min(first) AS first, min(seq) AS seq FROM `+facts+`
		WHERE length(host) >= 24 GROUP BY host) f JOIN records r ON r.seq = f.seq ORDER BY f.first`, args, longLabel,
		"%d names below %s look random, such as %s: data may have been sent out in them.")
	if err != nil {
		return err
	}
	return look(RandomPath, `SELECT path, host, min(time), id FROM `+long+` WHERE time >= ? AND time < ?
		AND kind IN ('admit', 'refuse') AND length(path) > 60 GROUP BY host, path ORDER BY 3`,
		[]any{h.span.From.UnixNano(), h.span.Until.UnixNano()}, longSegment,
		"%d paths at %s look random, such as %s: data may have been sent out in them.")
}

// ids returns the ids of records, by their numbers.
func (h *hunt) ids(seqs []int64) (ids []string, err error) {
	args := make([]any, len(seqs))
	for i, s := range seqs {
		args[i] = s
	}
	var id string
	err = h.each("SELECT id FROM entries WHERE seq IN (?"+strings.Repeat(", ?", len(seqs)-1)+") ORDER BY time", args, []any{&id}, func() error {
		ids = append(ids, id)
		return nil
	})
	return ids, err
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d octets", n)
}

// span is a duration as people say it.
func span(d time.Duration) string {
	switch {
	case d > 365*24*time.Hour:
		return "time"
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", int(d.Hours()))
	}
	return d.Round(time.Second).String()
}
