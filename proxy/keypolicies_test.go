package proxy_test

import "strings"

// keyLimits are the six limits, in each of the three places where they can stand.
func keyLimits() []keyCase {
	out := []keyCase{}
	places := map[string]func(string) string{
		"rules[].limits": func(s string) string { return keyRule("host: ok.test, methods: [GET, POST]", ", limits: {"+s+"}") },
		"limits": func(s string) string {
			return "limits: {" + s + "}\n" + keyRule("host: ok.test, methods: [GET, POST]", "")
		},
		"defaults.limits": func(s string) string {
			return "defaults: {limits: {" + s + "}}\n" + keyRule("host: ok.test, methods: [GET, POST]", "")
		},
	}
	post := func(path, with, twin string) keyAsk {
		return keyAsk{ask: "POST https://ok.test" + path, body: 2000, with: with, twin: twin}
	}
	get := func(path, with, twin string) keyAsk {
		return keyAsk{ask: "GET https://ok.test" + path, with: with, twin: twin}
	}
	for place, policy := range places {
		over := overLimit
		if place == "limits" {
			over = "429 limit: limit" // of the run, whatever the rule
		}
		for _, unit := range []string{"min", "hour", "day"} {
			out = append(out, keyCase{
				keys: []string{place + ".requests", place}, what: unit, with: policy("requests: 1/" + unit), twin: policy("requests: 2/" + unit),
				asks: []keyAsk{get("/", okIn, okIn), get("/", over, okIn), get("/", over, over)},
			})
		}
		out = append(out,
			keyCase{
				keys: []string{place + ".sent"}, with: policy("sent: 1KiB/day"), twin: policy("sent: 3KiB/day"),
				asks: []keyAsk{get("/", okIn, okIn), post("/", over, okIn), post("/", over, over)},
			},
			keyCase{
				keys: []string{place + ".received"}, with: policy("received: 1KiB/hour"), twin: policy("received: 3KiB/hour"),
				asks: []keyAsk{get("/", okIn, okIn), get("/big", "429 limit: allowed ok then limit seen", okIn), get("/big", "429 limit: allowed ok then limit seen", "429 limit: allowed ok then limit seen")},
			},
			keyCase{
				keys: []string{place + ".request_body"}, with: policy("request_body: 1KiB"), twin: policy("request_body: 2KiB"),
				asks: []keyAsk{get("/", okIn, okIn), post("/", "413 body_too_large: body_too_large ok", okIn)},
			},
			keyCase{
				keys: []string{place + ".request_head"}, with: policy("request_head: 1KiB"), twin: policy("request_head: 4KiB"),
				asks: []keyAsk{get("/", okIn, okIn), get("/"+strings.Repeat("p", 2<<10), "431 head_too_large: head_too_large ok", okIn)},
			},
			keyCase{
				keys: []string{place + ".concurrent"}, with: policy("concurrent: 1"), twin: policy("concurrent: 2"),
				asks: []keyAsk{get("/nested", over+" inside "+okIn+", 1 seen", okIn+" inside "+okIn+", 2 seen"), get("/", okIn, okIn)},
			},
		)
	}
	stream := func(n string) string {
		return keyRule("host: ok.test, ports: [5432], protocol: tcp", ", limits: {requests: "+n+"/day}")
	}
	return append(out, keyCase{
		keys: []string{"rules[].limits.requests"}, what: "of streams", with: stream("1"), twin: stream("2"),
		asks: []keyAsk{
			{ask: "tcp ok.test:5432", with: "echo allowed ok", twin: "echo allowed ok"},
			{ask: "tcp ok.test:5432", with: "closed limit ok", twin: "echo allowed ok"},
		},
	})
}

// keyModes are the modes of a policy and of a rule.
func keyModes() []keyCase {
	const would = "200 allowed would="
	deny := func(more string) string {
		return "rules:\n  - {id: ok, reason: x, allow: {host: ok.test}}\n  - {id: no, reason: x, deny: {host: ok.test, paths: [/no]}" + more + "}\n"
	}
	return []keyCase{
		{
			keys: []string{"mode"}, what: "observe", with: "mode: observe\n" + deny(""), twin: "mode: enforce\n" + deny(""),
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: okIn, twin: okIn},
				{ask: "GET https://other.test/", with: would + "host_not_allowed", twin: noHost},
				{ask: "PUT https://ok.test/", with: would + "method_not_allowed", twin: noMethod},
				{ask: "GET https://ok.test/no", with: "200 allowed no would=denied_by_rule", twin: ruleNo},
				{ask: "A other.test", with: "A allowed", twin: "A host_not_allowed"},
				{ask: "TXT other.test", with: "NODATA dns_type_not_allowed", twin: "NODATA dns_type_not_allowed"},
				{ask: "tcp ok.test:5432", with: "echo allowed would=port_not_allowed", twin: "closed port_not_allowed"},
			},
		},
		{
			keys: []string{"mode"}, what: "learn", with: "mode: learn\n" + deny(""), twin: "mode: enforce\n" + deny(""),
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: okIn, twin: okIn},
				{ask: "GET https://other.test/", with: "200 learned would=host_not_allowed", twin: noHost},
				{ask: "GET https://ok.test/no", with: ruleNo, twin: ruleNo},
				{ask: "A other.test", with: "A learned", twin: "A host_not_allowed"},
			},
		},
		{
			keys: []string{"rules[].mode"}, what: "observe of a deny rule", with: deny(", mode: observe"), twin: deny(", mode: enforce"),
			asks: []keyAsk{
				{ask: "GET https://ok.test/no", with: "200 allowed no would=denied_by_rule", twin: ruleNo},
				{ask: "GET https://other.test/", with: noHost, twin: noHost},
			},
		},
		{
			keys: []string{"rules[].mode"}, what: "observe", with: keyRule("host: ok.test, paths: [/v1]", ", mode: observe"), twin: keyRule("host: ok.test, paths: [/v1]", ""),
			asks: []keyAsk{
				{ask: "GET https://ok.test/v1", with: okIn, twin: okIn},
				{ask: "PUT https://ok.test/v2", with: "200 allowed ok would=method_not_allowed", twin: noMethod},
				{ask: "GET https://other.test/v1", with: noHost, twin: noHost},
			},
		},
		{
			keys: []string{"rules[].mode"}, what: "learn", with: keyRule("host: ok.test, paths: [/v1]", ", mode: learn"), twin: keyRule("host: ok.test, paths: [/v1]", ""),
			asks: []keyAsk{
				{ask: "GET https://ok.test/v1", with: okIn, twin: okIn},
				{ask: "GET https://ok.test/v2", with: "200 learned ok would=path_not_allowed", twin: noPath},
			},
		},
	}
}

// keyNames are the keys of DNS.
func keyNames() []keyCase {
	resolve := func(list string) string { return "dns: {resolve: [" + list + "]}\n" + keyOK }
	return []keyCase{
		{
			keys: []string{"dns", "dns.denied"}, with: "dns: {denied: nxdomain}\n" + keyOK, twin: "dns: {denied: explain}\n" + keyOK,
			asks: []keyAsk{
				{ask: "A other.test", with: "NXDOMAIN host_not_allowed", twin: "A host_not_allowed"},
				{ask: "A ok.test", with: "A allowed ok", twin: "A allowed ok"},
				{ask: "GET https://other.test/", with: noHost, twin: noHost},
			},
		},
		{
			keys: []string{"dns.resolve", "dns.resolve[].types"}, with: resolve("{host: ok.test, types: [TXT]}"), twin: resolve("{host: ok.test, types: [MX]}"),
			asks: []keyAsk{
				{ask: "TXT ok.test", with: "TXT allowed ok", twin: "NODATA dns_type_not_allowed"},
				{ask: "MX ok.test", with: "NODATA dns_type_not_allowed", twin: "MX allowed ok"},
				{ask: "TXT a.ok.test", with: "NODATA dns_type_not_allowed", twin: "NODATA dns_type_not_allowed"},
				{ask: "GET https://ok.test/", with: okIn, twin: okIn},
			},
		},
		{
			keys: []string{"dns.resolve[].host"}, with: "dns: {resolve: [{host: ok.test, types: [TXT]}]}\n" + keyRule("hosts: [ok.test, other.test]", ""),
			twin: "dns: {resolve: [{host: other.test, types: [TXT]}]}\n" + keyRule("hosts: [ok.test, other.test]", ""),
			asks: []keyAsk{
				{ask: "TXT ok.test", with: "TXT allowed ok", twin: "NODATA dns_type_not_allowed"},
				{ask: "TXT other.test", with: "NODATA dns_type_not_allowed", twin: "TXT allowed ok"},
			},
		},
	}
}

// keyNevers are statements of what is never admitted: under a policy that observes they
// deny, and one that admits what a statement is about does not load.
func keyNevers() []keyCase {
	never := func(s string) string {
		return "mode: observe\n" + keyOK + "never:\n  - {" + s + "}\n"
	}
	const (
		at    = "403 denied_by_rule: denied_by_rule never:keys.yaml:8"
		would = "200 allowed would="
	)
	put := func(to, with, twin string) keyAsk { return keyAsk{ask: "PUT https://" + to, with: with, twin: twin} }
	return []keyCase{
		{
			keys: []string{"never", "never[].host"}, with: never("host: other.test"), twin: never("host: third.test"),
			asks: []keyAsk{put("other.test/", at, would+"host_not_allowed"), put("third.test/", would+"host_not_allowed", at), put("ok.test/", would+"method_not_allowed", would+"method_not_allowed")},
		},
		{
			keys: []string{"never"}, what: "of what is admitted", with: keyOK + "never: [{host: other.test}]\n", twin: keyOK + "never: [{host: ok.test}]\n",
			asks: []keyAsk{{ask: "GET https://ok.test/", with: okIn, twin: "load never"}},
		},
		{
			keys: []string{"never[].hosts"}, with: never("hosts: [third.test, other.test]"), twin: never("hosts: [third.test]"),
			asks: []keyAsk{put("other.test/", at, would+"host_not_allowed"), put("third.test/", at, at)},
		},
		{
			keys: []string{"never[].ports"}, with: never("host: other.test, ports: [8443]"), twin: never("host: other.test, ports: [443]"),
			asks: []keyAsk{put("other.test/", would+"host_not_allowed", at), put("other.test:8443/", at, would+"host_not_allowed")},
		},
		{
			keys: []string{"never[].methods"}, with: never("host: ok.test, methods: [PUT]"), twin: never("host: ok.test, methods: [DELETE]"),
			asks: []keyAsk{put("ok.test/", at, would+"method_not_allowed")},
		},
		{
			keys: []string{"never[].paths"}, with: never("host: other.test, paths: [/v1]"), twin: never("host: other.test, paths: [/v2]"),
			asks: []keyAsk{put("other.test/v1", at, would+"host_not_allowed"), put("other.test/v2", would+"host_not_allowed", at)},
		},
		{
			keys: []string{"never[].credential"}, with: keyRule("host: api.test", ", credential: key") + "never:\n  - {credential: key, methods: [GET]}\n",
			twin: keyRule("host: api.test", ", credential: key") + "never:\n  - {credential: key, methods: [PUT]}\n",
			asks: []keyAsk{{ask: "GET https://api.test/", with: "load credential", twin: okIn + " credential=key signed"}},
		},
	}
}

// keyIncludes are the rules of other files, presets and package managers.
func keyIncludes() []keyCase {
	include := func(s string) string { return "include: [{" + s + "}]\n" }
	files := map[string]string{
		"a.yaml": "rules: [{id: a, reason: x, allow: {host: ok.test}}]\n", "b.yaml": "rules: [{id: b, reason: x, allow: {host: other.test}}]\n",
	}
	const repo = "GET https://github.com/acme/site.git/info/refs"
	return []keyCase{
		{
			keys: []string{"include", "include[].file"}, with: include("file: a.yaml"), twin: include("file: b.yaml"), files: files,
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: "200 allowed a", twin: noHost},
				{ask: "A other.test", with: "A host_not_allowed", twin: "A allowed b"},
			},
		},
		{
			keys: []string{"include[].preset"}, with: include("preset: anthropic@1"), twin: include("preset: openai@1"),
			asks: []keyAsk{
				{ask: "GET https://api.anthropic.com/v1/models", with: "200 allowed anthropic-models", twin: noHost},
				{ask: "GET https://api.anthropic.com/v1/files", with: noPath, twin: noHost},
			},
		},
		{
			keys: []string{"include[].with"}, with: include("preset: git-github-read@1, with: {repositories: [acme/site]}"), twin: include("preset: git-github-read@1, with: {repositories: [acme/docs]}"),
			asks: []keyAsk{{ask: repo, with: "200 allowed git-github-read-refs", twin: noPath}},
		},
		{
			keys: []string{"include[].credential"}, with: include("preset: anthropic@1, credential: llm"), twin: include("preset: anthropic@1"),
			asks: []keyAsk{{ask: "GET https://api.anthropic.com/v1/models", with: "200 allowed anthropic-models credential=llm signed", twin: "200 allowed anthropic-models"}},
		},
		{
			keys: []string{"include[].detect"}, with: include("detect: [pip]"), twin: include("detect: [npm]"),
			asks: []keyAsk{
				{ask: "GET https://pip.example.com/simple/", with: "200 allowed detect-pip-1", twin: noHost},
				{ask: "PUT https://pip.example.com/simple/", with: noMethod, twin: noHost},
			},
		},
		{
			keys: []string{"include[].cidrs"}, with: include("detect: [npm], cidrs: [10.20.0.0/16]"), twin: include("detect: [npm]"),
			asks: []keyAsk{{ask: "GET https://in.test/", with: "200 allowed detect-npm-1", twin: "403 private_ip: allowed detect-npm-1 then private_ip"}},
		},
	}
}

// keyTests are the tests of a policy: one that does not hold keeps it from being loaded.
func keyTests() []keyCase {
	policy := func(test string) string {
		return "rules:\n  - {id: ok, reason: x, allow: {host: api.test, methods: [POST], headers: [{name: X-Mode, equals: safe}]}, credential: key, limits: {request_body: 1KiB}, expires: 2030-01-01}\n" +
			"  - {id: any, reason: x, allow: {host: ok.test}}\ntests:\n  - {" + test + "}\n"
	}
	const post = `request: "POST https://api.test/", headers: {X-Mode: safe}`
	out := []keyCase{}
	for _, c := range []struct{ key, holds, fails string }{
		{"request", `request: "GET https://ok.test/", expect: allow`, `request: "PUT https://ok.test/", expect: allow`},
		{"connect", "connect: ok.test:443, expect: allow", "connect: ok.test:80, expect: allow"},
		{"dns", "dns: A ok.test, expect: allow", "dns: TXT ok.test, expect: allow"},
		{"expect", `request: "GET https://ok.test/", expect: allow`, `request: "GET https://ok.test/", expect: deny`},
		{"rule", `request: "GET https://ok.test/", expect: allow, rule: any`, `request: "GET https://ok.test/", expect: allow, rule: ok`},
		{"credential", post + ", expect: allow, credential: key", post + ", expect: allow, credential: llm"},
		{"reason", `request: "PUT https://ok.test/", expect: deny, reason: method_not_allowed`, `request: "PUT https://ok.test/", expect: deny, reason: path_not_allowed`},
		{"headers", post + ", expect: allow", `request: "POST https://api.test/", headers: {X-Mode: wild}, expect: allow`},
		{"body", post + ", body: 1KiB, expect: allow", post + ", body: 2KiB, expect: allow"},
		{"at", post + ", at: 2029-12-31, expect: allow", post + ", at: 2030-01-01, expect: allow"},
	} {
		out = append(out, keyCase{
			keys: []string{"tests[]." + c.key, "tests"}, with: policy(c.holds), twin: policy(c.fails),
			asks: []keyAsk{{ask: "GET https://ok.test/", with: "200 allowed any", twin: "load test"}},
		})
	}
	return out
}
