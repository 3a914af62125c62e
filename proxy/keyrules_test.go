package proxy_test

import (
	"slices"

	"sallyport/rules/live"
)

// keyOK admits two hosts, on the usual ports.
const keyOK = "rules:\n  - {id: ok, reason: x, allow: {host: ok.test}}\n"

// keyRule is a policy of one allow rule, and keyDeny one of all hosts of the cases with
// one deny rule; rest is what its match says, more what stands beside it.
func keyRule(match, more string) string {
	return "rules:\n  - {id: ok, reason: x, allow: {" + match + "}" + more + "}\n"
}

func keyDeny(match string) string {
	return "rules:\n  - {id: ok, reason: x, allow: {hosts: [ok.test, other.test, a.ok.test], ports: [443, 8443], access: write}}\n" +
		"  - {id: no, reason: x, deny: {" + match + "}}\n"
}

// keyCases are the cases of all keys of a policy.
func keyCases() []keyCase {
	return slices.Concat(keyHeads(), keyMatches(), keyStreams(), keyDenials(), keyConditions(), keyGrants(), keyLogs(),
		keyLimits(), keyModes(), keyNames(), keyNevers(), keyIncludes(), keyScopes(), keyTests())
}

const (
	okIn      = "200 allowed ok"
	noHost    = "403 host_not_allowed: host_not_allowed"
	noPort    = "403 port_not_allowed: port_not_allowed"
	noMethod  = "403 method_not_allowed: method_not_allowed"
	noPath    = "403 path_not_allowed: path_not_allowed"
	noHeader  = "403 header_not_allowed: header_not_allowed"
	noQuery   = "403 query_not_allowed: query_not_allowed"
	ruleNo    = "403 denied_by_rule: denied_by_rule no"
	overLimit = "429 limit: limit ok"
)

// keyHeads are the keys that say what a file is.
func keyHeads() []keyCase {
	ok := []keyAsk{{ask: "GET https://ok.test/", with: okIn, twin: "load sallyport/v1"}}
	return []keyCase{
		{keys: []string{"apiVersion"}, with: keyHead + keyOK, twin: "apiVersion: sallyport/v2\nkind: Policy\nmetadata: {name: keys}\n" + keyOK, asks: ok},
		{
			keys: []string{"kind"}, with: keyHead + keyOK, twin: "apiVersion: sallyport/v1\nkind: Polici\nmetadata: {name: keys}\n" + keyOK,
			asks: []keyAsk{{ask: "GET https://ok.test/", with: okIn, twin: "load Polici"}},
		},
		{
			keys: []string{"metadata"}, with: keyHead + keyOK, twin: "apiVersion: sallyport/v1\nkind: Policy\n" + keyOK,
			asks: []keyAsk{{ask: "GET https://ok.test/", with: okIn, twin: "load metadata"}},
		},
		{
			keys: []string{"rules", "rules[].allow"}, with: keyOK, twin: "rules: []\n",
			asks: []keyAsk{{ask: "GET https://ok.test/", with: okIn, twin: noHost}, {ask: "A ok.test", with: "A allowed ok", twin: "A host_not_allowed"}},
		},
		{
			keys: []string{"rules[].id"}, with: keyOK, twin: "rules:\n  - {id: else, reason: x, allow: {host: ok.test}}\n",
			asks: []keyAsk{{ask: "GET https://ok.test/", with: okIn, twin: "200 allowed else"}},
		},
		{
			keys: []string{"rules[].expires"}, with: keyRule("host: ok.test", ", expires: 2999-01-01"), twin: keyRule("host: ok.test", ", expires: 2020-01-01"),
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: okIn, twin: "403 rule_expired: rule_expired ok"},
				{ask: "A ok.test", with: "A allowed ok", twin: "A rule_expired ok"},
			},
		},
		{
			keys: []string{"rules[].multi_tenant"}, with: keyRule(`host: "*.github.io"`, ", multi_tenant: acknowledged"), twin: keyRule(`host: "*.github.io"`, ""),
			asks: []keyAsk{{ask: "GET https://a.github.io/", with: okIn, twin: "load multi_tenant: acknowledged"}},
		},
	}
}

// keyMatches are the conditions of allow rules, but for headers and queries.
func keyMatches() []keyCase {
	ok := keyRule("host: ok.test", "")
	return []keyCase{
		{
			keys: []string{"rules[].allow.host"}, with: ok, twin: keyRule("host: other.test", ""),
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: okIn, twin: noHost},
				{ask: "GET https://other.test/", with: noHost, twin: okIn},
				{ask: "GET https://a.ok.test/", with: noHost, twin: noHost},
				{ask: "A ok.test", with: "A allowed ok", twin: "A host_not_allowed"},
				{ask: "A a.ok.test", with: "A host_not_allowed", twin: "A host_not_allowed"},
			},
		},
		{
			keys: []string{"rules[].allow.host"}, what: "wildcard", with: keyRule(`host: "*.ok.test"`, ""), twin: ok,
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: noHost, twin: okIn},
				{ask: "GET https://a.ok.test/", with: okIn, twin: noHost},
				{ask: "GET https://b.a.ok.test/", with: okIn, twin: noHost},
				{ask: "A b.a.ok.test", with: "A allowed ok", twin: "A host_not_allowed"},
			},
		},
		{
			keys: []string{"rules[].allow.host"}, what: "IDN as it is read", with: keyRule("host: bücher.test", ""), twin: ok,
			asks: []keyAsk{
				{ask: "GET https://xn--bcher-kva.test/", with: okIn, twin: noHost},
				{ask: "A xn--bcher-kva.test", with: "A allowed ok", twin: "A host_not_allowed"},
			},
		},
		{
			keys: []string{"rules[].allow.host"}, what: "IDN as it is sent", with: keyRule("host: xn--bcher-kva.test", ""), twin: ok,
			asks: []keyAsk{{ask: "GET https://xn--bcher-kva.test/", with: okIn, twin: noHost}},
		},
		{
			keys: []string{"rules[].allow.host"}, what: "address", with: keyRule("host: 11.7.7.9, ports: [80]", ""), twin: keyRule("host: 11.7.7.8, ports: [80]", ""),
			asks: []keyAsk{{ask: "GET http://11.7.7.9/", with: okIn, twin: "403 address_not_allowed: address_not_allowed"}},
		},
		{
			keys: []string{"rules[].allow.hosts"}, with: keyRule("hosts: [ok.test, other.test]", ""), twin: keyRule("hosts: [ok.test]", ""),
			asks: []keyAsk{{ask: "GET https://ok.test/", with: okIn, twin: okIn}, {ask: "GET https://other.test/", with: okIn, twin: noHost}},
		},
		{
			keys: []string{"rules[].allow.ports"}, with: keyRule("host: ok.test, ports: [80, 8443]", ""), twin: ok,
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: noPort, twin: okIn},
				{ask: "GET https://ok.test:8443/", with: okIn, twin: noPort},
				{ask: "GET http://ok.test/", with: okIn, twin: noPort},
				{ask: "GET http://ok.test:8080/", with: noPort, twin: noPort},
			},
		},
		{
			keys: []string{"rules[].allow.methods"}, with: keyRule("host: ok.test, methods: [GET, PUT]", ""), twin: ok,
			asks: []keyAsk{
				{ask: "PUT https://ok.test/", with: okIn, twin: noMethod, body: 5},
				{ask: "HEAD https://ok.test/", with: noMethod, twin: okIn},
			},
		},
		{
			keys: []string{"rules[].allow.access"}, with: keyRule("host: ok.test, access: write", ""), twin: keyRule("host: ok.test, access: read", ""),
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: okIn, twin: okIn},
				{ask: "HEAD https://ok.test/", with: okIn, twin: okIn},
				{ask: "DELETE https://ok.test/", with: okIn, twin: noMethod},
				{ask: "PROPFIND https://ok.test/", with: okIn, twin: noMethod},
			},
		},
		{
			keys: []string{"rules[].allow.paths"}, what: "star", with: keyRule(`host: ok.test, paths: ["/v1/*"]`, ""), twin: ok,
			asks: []keyAsk{
				{ask: "GET https://ok.test/v1/a?q=1", with: okIn, twin: okIn},
				{ask: "GET https://ok.test/v1", with: noPath, twin: okIn},
				{ask: "GET https://ok.test/v1/a/b", with: noPath, twin: okIn},
				{ask: "GET https://ok.test/V1/a", with: noPath, twin: okIn},
			},
		},
		{
			keys: []string{"rules[].allow.paths"}, what: "two stars", with: keyRule(`host: ok.test, paths: ["/v1/**"]`, ""), twin: keyRule("host: ok.test, paths: [/v2]", ""),
			asks: []keyAsk{
				{ask: "GET https://ok.test/v1", with: okIn, twin: noPath},
				{ask: "GET https://ok.test/v1/a/b", with: okIn, twin: noPath},
				{ask: "GET https://ok.test/v1x", with: noPath, twin: noPath},
				{ask: "GET https://ok.test/v2", with: noPath, twin: okIn},
			},
		},
		{
			keys: []string{"rules[].allow.cidrs"}, with: keyRule("host: in.test, cidrs: [10.20.0.0/16]", ""), twin: keyRule("host: in.test, cidrs: [10.30.0.0/16]", ""),
			asks: []keyAsk{
				{ask: "GET https://in.test/", with: okIn, twin: "403 private_ip: allowed ok then private_ip"},
				{ask: "A in.test", with: "A allowed ok", twin: "A allowed ok"},
			},
		},
		{
			keys: []string{"rules[].allow.cidrs"}, what: "alone", with: keyRule("cidrs: [10.20.0.0/16], ports: [80]", ""), twin: keyRule("cidrs: [10.30.0.0/16], ports: [80]", ""),
			asks: []keyAsk{
				{ask: "GET http://10.20.0.7/", with: okIn, twin: "403 address_not_allowed: address_not_allowed"},
				{ask: "GET http://in.test/", with: noHost, twin: noHost},
				{ask: "A in.test", with: "A host_not_allowed", twin: "A host_not_allowed"},
			},
		},
		{
			keys: []string{"defaults", "defaults.ports"}, with: "defaults: {ports: [8443]}\n" + keyOK, twin: keyOK,
			asks: []keyAsk{{ask: "GET https://ok.test/", with: noPort, twin: okIn}, {ask: "GET https://ok.test:8443/", with: okIn, twin: noPort}},
		},
		{
			keys: []string{"defaults.methods"}, with: "defaults: {methods: [PUT]}\n" + keyOK, twin: keyOK,
			asks: []keyAsk{{ask: "GET https://ok.test/", with: noMethod, twin: okIn}, {ask: "PUT https://ok.test/", with: okIn, twin: noMethod}},
		},
	}
}

// keyStreams are the keys of what nobody looks into.
func keyStreams() []keyCase {
	const closed = "closed protocol_not_allowed"
	through := []keyAsk{
		{ask: "GET https://ok.test/", with: "200 through allowed ok", twin: okIn},
		{ask: "A ok.test", with: "A allowed ok", twin: "A allowed ok"},
	}
	return []keyCase{
		{
			keys: []string{"rules[].allow.protocol"}, with: keyRule("host: ok.test, ports: [5432], protocol: tcp", ""), twin: keyRule("host: ok.test, ports: [5432]", ""),
			asks: []keyAsk{{ask: "tcp ok.test:5432", with: "echo allowed ok", twin: closed}},
		},
		{
			keys: []string{"rules[].deny.protocol"}, with: keyDeny("host: ok.test, protocol: tcp"), twin: keyDeny("host: ok.test"),
			asks: []keyAsk{{ask: "GET https://ok.test/", with: "load protocol", twin: ruleNo}},
		},
		{keys: []string{"rules[].tls"}, with: keyRule("host: ok.test", ", tls: passthrough"), twin: keyRule("host: ok.test", ", tls: inspect"), asks: through},
		{
			keys: []string{"rules[].tls"}, what: "plain", with: keyRule("host: ok.test, ports: [80]", ", tls: passthrough"), twin: keyRule("host: ok.test, ports: [80]", ""),
			asks: []keyAsk{{ask: "GET http://ok.test/", with: "403 protocol_not_allowed: protocol_not_allowed", twin: okIn}},
		},
		{keys: []string{"defaults.tls"}, with: "defaults: {tls: passthrough}\n" + keyOK, twin: keyOK, asks: through},
	}
}

// keyDenials are the keys of deny rules.
func keyDenials() []keyCase {
	return []keyCase{
		{
			keys: []string{"rules[].deny", "rules[].deny.host"}, with: keyDeny("host: ok.test"), twin: keyDeny("host: other.test"),
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: ruleNo, twin: okIn},
				{ask: "GET https://other.test/", with: okIn, twin: ruleNo},
				{ask: "A ok.test", with: "A denied_by_rule no", twin: "A allowed ok"},
			},
		},
		{
			keys: []string{"rules[].deny.hosts"}, with: keyDeny(`hosts: ["*.ok.test", other.test]`), twin: keyDeny("hosts: [other.test]"),
			asks: []keyAsk{
				{ask: "GET https://a.ok.test/", with: ruleNo, twin: okIn},
				{ask: "GET https://other.test/", with: ruleNo, twin: ruleNo},
				{ask: "GET https://ok.test/", with: okIn, twin: okIn},
			},
		},
		{
			keys: []string{"rules[].deny.ports"}, with: keyDeny("host: ok.test, ports: [8443]"), twin: keyDeny("host: ok.test"),
			asks: []keyAsk{{ask: "GET https://ok.test:8443/", with: ruleNo, twin: ruleNo}, {ask: "GET https://ok.test/", with: okIn, twin: ruleNo}},
		},
		{
			keys: []string{"rules[].deny.methods"}, with: keyDeny("host: ok.test, methods: [DELETE]"), twin: keyDeny("host: ok.test, methods: [PUT]"),
			asks: []keyAsk{
				{ask: "DELETE https://ok.test/", with: ruleNo, twin: okIn},
				{ask: "PUT https://ok.test/", with: okIn, twin: ruleNo},
			},
		},
		{
			keys: []string{"rules[].deny.access"}, with: keyDeny("host: ok.test, access: write"), twin: keyDeny("host: ok.test"),
			asks: []keyAsk{{ask: "GET https://ok.test/", with: "load access", twin: ruleNo}},
		},
		{
			keys: []string{"rules[].deny.paths"}, with: keyDeny(`host: ok.test, paths: ["/v1/**"]`), twin: keyDeny("host: ok.test, paths: [/v2]"),
			asks: []keyAsk{
				{ask: "GET https://ok.test/v1/a", with: ruleNo, twin: okIn},
				{ask: "GET https://ok.test/V1/", with: ruleNo, twin: okIn},
				{ask: "GET https://ok.test/v2/", with: okIn, twin: ruleNo},
			},
		},
		{
			keys: []string{"rules[].deny.cidrs"}, with: keyDeny("cidrs: [11.7.7.7/32]"), twin: keyDeny("cidrs: [11.7.7.9/32]"),
			asks: []keyAsk{{ask: "GET https://ok.test/", with: "403 denied_by_rule: allowed ok then denied_by_rule", twin: okIn}},
		},
	}
}

// keyConditions are headers and queries.
func keyConditions() []keyCase {
	out := []keyCase{}
	for _, side := range []struct {
		key, in, out, none string
		with               func(string) string
	}{
		{"rules[].allow.", okIn, noHeader, keyRule("host: ok.test", ""), func(s string) string { return keyRule("host: ok.test, "+s, "") }},
		{"rules[].deny.", ruleNo, okIn, "", func(s string) string { return keyDeny("host: ok.test, " + s) }},
	} {
		not := map[string]string{"headers": side.out, "query": side.out}
		if side.out == noHeader {
			not["query"] = noQuery
		}
		for _, c := range []struct{ list, name, other string }{{"headers", "X-Mode", "X-Else"}, {"query", "mode", "else"}} {
			yes, wrong, none := keyAsk{ask: "GET https://ok.test/"}, keyAsk{ask: "GET https://ok.test/"}, keyAsk{ask: "GET https://ok.test/"}
			if c.list == "headers" {
				yes.header, wrong.header = "X-Mode: safe", "X-Mode: wild"
			} else {
				yes.ask, wrong.ask = yes.ask+"?mode=safe", wrong.ask+"?a=b&mode=wild"
			}
			set := func(a keyAsk, with, twin string) keyAsk { a.with, a.twin = with, twin; return a }
			in, no, key := side.in, not[c.list], side.key+c.list
			equals, present, absent := "[{name: "+c.name+", equals: safe}]", "[{name: "+c.name+", present: true}]", "[{name: "+c.name+", present: false}]"
			policy := func(list string) string { return side.with(c.list + ": " + list) }
			out = append(out,
				keyCase{keys: []string{key, key + "[].equals"}, with: policy(equals), twin: policy("[{name: " + c.name + ", equals: wild}]"), asks: []keyAsk{set(yes, in, no), set(wrong, no, in), set(none, no, no)}},
				keyCase{keys: []string{key + "[].present"}, with: policy(present), twin: policy(absent), asks: []keyAsk{set(yes, in, no), set(wrong, in, no), set(none, no, in)}},
				keyCase{keys: []string{key + "[].name"}, with: policy(present), twin: policy("[{name: " + c.other + ", present: true}]"), asks: []keyAsk{set(yes, in, no)}},
			)
		}
	}
	return out
}

// keyGrants are credentials.
func keyGrants() []keyCase {
	const foreign = "403 foreign_credential: foreign_credential"
	own := func(more string) string {
		return "rules:\n  - {id: ok, reason: x, allow: {host: api.test, paths: [/v1]}, credential: key}\n" +
			"  - {id: own, reason: x, allow: {host: api.test, paths: [/own]}" + more + "}\n"
	}
	return []keyCase{
		{
			keys: []string{"rules[].credential"}, with: keyRule("host: api.test", ", credential: key"), twin: keyRule("host: api.test", ""),
			asks: []keyAsk{
				{ask: "GET https://api.test/", with: okIn + " credential=key signed", twin: okIn},
				{ask: "A api.test", with: "A allowed ok", twin: "A allowed ok"},
			},
		},
		{
			keys: []string{"rules[].callers_key"}, with: own(", callers_key: allow"), twin: own(", callers_key: refuse"),
			asks: []keyAsk{
				{ask: "GET https://api.test/own", header: "Authorization: Bearer mine", with: "200 allowed own with Bearer mine", twin: foreign + " own credential=key"},
				{ask: "GET https://api.test/own", with: "200 allowed own", twin: "200 allowed own"},
				{ask: "GET https://api.test/v1", header: "Authorization: Bearer mine", with: foreign + " ok credential=key", twin: foreign + " ok credential=key"},
			},
		},
	}
}

// keyLogs are the levels of the log.
func keyLogs() []keyCase {
	out := []keyCase{}
	for level, more := range map[string]string{"none": " path=", "metadata": "", "request": " kept=request", "request_response": " kept=request_response"} {
		other, rest := "metadata", ""
		if level == "metadata" {
			other, rest = "none", " path="
		}
		asks := []keyAsk{
			{ask: "GET https://ok.test/a?b=c", with: okIn + more, twin: okIn + rest},
			{ask: "PUT https://ok.test/a", with: noMethod, twin: noMethod},
		}
		out = append(out,
			keyCase{keys: []string{"rules[].log"}, what: level, with: keyRule("host: ok.test", ", log: "+level), twin: keyRule("host: ok.test", ", log: "+other), asks: asks},
			keyCase{keys: []string{"defaults.log"}, what: level, with: "defaults: {log: " + level + "}\n" + keyOK, twin: "defaults: {log: " + other + "}\n" + keyOK, asks: asks},
		)
	}
	return out
}

// keyScopes are what stands round a policy: no keys of it, but it decides with them.
func keyScopes() []keyCase {
	return []keyCase{
		{
			keys: []string{"rules"}, what: "of a floor", with: keyOK, twin: keyOK, floor: "rules: [{id: no, reason: x, deny: {host: ok.test, paths: [/v1]}}]\n",
			asks: []keyAsk{
				{ask: "GET https://ok.test/v1", with: ruleNo + " scope=floor", twin: okIn},
				{ask: "GET https://ok.test/", with: okIn, twin: okIn},
			},
		},
		{
			keys: []string{"limits"}, what: "of a floor", with: keyOK, twin: keyOK, floor: "limits: {requests: 1/day}\nrules: []\n",
			asks: []keyAsk{
				{ask: "GET https://ok.test/", with: okIn, twin: okIn},
				{ask: "GET https://ok.test/", with: "429 limit: limit scope=floor", twin: okIn},
			},
		},
		{
			keys: []string{"rules"}, what: "of a run", with: keyOK, twin: keyOK, run: "rules: [{id: less, reason: x, allow: {host: ok.test, paths: [/v1]}}]\n",
			asks: []keyAsk{
				{ask: "GET https://ok.test/v1", with: okIn, twin: okIn},
				{ask: "GET https://ok.test/", with: noPath + " scope=run", twin: okIn},
			},
		},
		{
			keys: []string{"rules"}, what: "beside an approval", with: keyOK, twin: keyOK,
			approved: &live.Ask{ID: "01KGA0000000000000000000A2", Method: "PUT", Host: "other.test", Port: 443, Path: "/v1"},
			asks: []keyAsk{
				{ask: "PUT https://other.test/v1", with: "200 allowed access-01kga0000000000000000000a2 scope=approval", twin: noHost},
				{ask: "A other.test", with: "A allowed access-01kga0000000000000000000a2", twin: "A host_not_allowed"},
				{ask: "GET https://other.test/v1", with: noMethod, twin: noHost},
			},
		},
	}
}
