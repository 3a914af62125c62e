package policyfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sallyport/rules/detect"
	"sallyport/rules/preset"
)

// form describes a value of a file: for the formatter, which takes the order of
// keys from it, and for the schema and the reference, which are made of it. The
// reader has its own tables, which say more; a test keeps both in step.
type form struct {
	what   string    // what errors call it, if it is a mapping with known keys
	keys   []keyForm // of such a mapping, in the order in which they are written
	list   *form     // of a list: its items
	values *form     // of a mapping with free keys
	empty  bool      // an empty list means something
	// Of a plain value:
	typ   string // string, integer, boolean
	words []string
	like  string // a regular expression
	as    string // what it is called in the reference
	// extra is what JSON Schema says of it beside.
	extra object
}

// object is a JSON object.
type object = map[string]any

// keyForm is a key of a mapping.
type keyForm struct {
	name     string
	required bool
	form     *form
	doc      string
	absent   string // what holds where it is left out
}

func word(words ...string) *form { return &form{typ: "string", words: words} }

func pattern(as, like string) *form { return &form{typ: "string", like: like, as: as} }

func listOf(s *form) *form { return &form{list: s, extra: object{"uniqueItems": true}} }

func anyListOf(s *form) *form { return &form{list: s, empty: true} }

const (
	likeID    = `^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`
	likeLabel = `[^A-Z*/@:\s.]`
	likeName  = `(` + likeLabel + `+\.)*` + likeLabel + `*[^A-Z*/@:\s.0-9]` + likeLabel + `*`
	likeIPv4  = likeOctet + `(\.` + likeOctet + `){3}`
	likeOctet = `(0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])`
	likeIPv6  = `[0-9a-f]*:[0-9a-f:]*[0-9a-f:.]*`
	likeAddr  = likeIPv4 + `|` + likeIPv6
	likeYear  = `(19(7[1-9]|[89][0-9])|[2-9][0-9]{3})`
	likeDay   = `((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))`
	likeDate  = `^` + likeYear + `-` + likeDay + `$`
	// likeLeap is the 29th of February of a year that has one.
	likeLeap = `^([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29$`
	likeSize = `[1-9][0-9]{0,6}(KiB|MiB|GiB|TiB)`
	likeTime = `/(min|hour|day)`
)

// The plain values.
var (
	textForm      = &form{typ: "string", like: `[^ \t\n]`, as: "text"}
	idForm        = pattern("name", likeID)
	hostForm      = pattern("host", `^(\*\.)?`+likeName+`$|^(`+likeAddr+`)$`)
	exactHostForm = pattern("host", `^`+likeName+`$|^(`+likeAddr+`)$`)
	pathForm      = alsoLike(pattern("path pattern", `^(/|(/(\*|\*\*|`+stepOf(`!$&-),+:=@_~A-Za-z0-9%`)+`))+/?)$`), notLike(`/\*\*/\*\*(/|$)`), notLike(`(/[^/]*){33}`), object{"maxLength": 1024}, escaped)
	cidrForm      = pattern("address range", `^(`+likeIPv4+`/(0|[1-9]|[12][0-9]|3[0-2])|`+likeIPv6+`/(0|[1-9][0-9]?|1[01][0-9]|12[0-8]))$`)
	dateForm      = alsoLike(pattern("date", likeDate), object{"anyOf": []any{notLike("-02-29$"), object{"pattern": likeLeap}}})
	rateForm      = pattern("rate", `^[1-9][0-9]*`+likeTime+`$`)
	sizesForm     = pattern("size in a period", `^`+likeSize+likeTime+`$`)
	sizeForm      = pattern("size", `^`+likeSize+`$`)
	countForm     = &form{typ: "integer", as: "number from 1", extra: object{"minimum": 1}}
	portForm      = &form{typ: "integer", as: "port", extra: object{"minimum": 1, "maximum": 65535}}
	boolForm      = &form{typ: "boolean"}
	methodForm    = &form{
		typ: "string", like: "^[!#$%&'*+.^_`|~0-9A-Z-]{1,32}$", as: "method", extra: object{"not": object{"const": "*"}},
	}
	modeForm = word("enforce", "observe", "learn")
	tlsForm  = word("inspect", "passthrough")
	logForm  = word("metadata", "request", "request_response", "none")
)

// numberForm is a whole number within bounds.
func numberForm(least, most int) *form {
	return &form{typ: "integer", as: fmt.Sprintf("number from %d to %d", least, most), extra: object{"minimum": least, "maximum": most}}
}

var metadataForm = &form{what: "metadata", keys: []keyForm{
	{name: "name", required: true, form: idForm, doc: "the name in records: 1 to 64 of `a-z 0-9 - . _`"},
	{name: "owner", form: textForm, doc: "who answers for it"},
	{name: "description", form: textForm, doc: "what it is for"},
}}

var limitsForm = &form{what: "limits", extra: object{"minProperties": 1}, keys: []keyForm{
	{name: "requests", form: rateForm, doc: "requests, and streams that nobody looks into", absent: "no limit"},
	{name: "sent", form: sizesForm, doc: "octets from the sandbox", absent: "no limit"},
	{name: "received", form: sizesForm, doc: "octets to the sandbox", absent: "no limit"},
	{name: "concurrent", form: countForm, doc: "requests and streams at a time", absent: "no limit"},
	{name: "request_body", form: sizeForm, doc: "octets of one request's body", absent: "no limit"},
	{name: "request_head", form: sizeForm, doc: "octets of one request's method, path, query and header fields", absent: "no limit"},
}}

func conditionForm(name *form) *form {
	return &form{
		what: "a condition", extra: object{"oneOf": needsOne("equals", "present")},
		keys: []keyForm{
			{name: "name", required: true, form: name, doc: "of the header, as it is spelled canonically, or of the parameter, decoded"},
			{name: "equals", form: textForm, doc: "its value"},
			{name: "present", form: boolForm, doc: "whether it is there at all"},
		},
	}
}

// needsOne is a list of alternatives, each of which needs one key.
func needsOne(keys ...string) []any {
	out := make([]any, len(keys))
	for i, k := range keys {
		out[i] = object{"required": []string{k}}
	}
	return out
}

// never are keys that cannot stand here.
func without(keys ...string) object {
	props := object{}
	for _, k := range keys {
		props[k] = false
	}
	return object{"properties": props}
}

func both(a, b string) object { return object{"not": object{"required": []string{a, b}}} }

func matchKeys(methods *form) []keyForm {
	return []keyForm{
		{name: "host", form: hostForm, doc: "a name, `*.name` for every name below it, or an address"},
		{name: "hosts", form: listOf(hostForm), doc: "several of them"},
		{name: "ports", form: listOf(portForm), doc: "the ports", absent: "allow: the default; deny: every port"},
		{name: "methods", form: listOf(methods), doc: "in upper case", absent: "allow: the default; deny: every method"},
		{name: "access", form: word("read", "write"), doc: "instead of methods: `read` for GET and HEAD, `write` for every method; allow only"},
		{name: "paths", form: &form{list: pathForm}, doc: "`*` is one segment, `**` any number", absent: "every path"},
		{name: "headers", form: &form{list: conditionForm(alsoLike(pattern("header", likeHeader), object{"minLength": 1}))}, doc: "what header fields have to be", absent: "any"},
		{name: "query", form: &form{list: conditionForm(textForm)}, doc: "what parameters of the query have to be", absent: "any"},
		{name: "protocol", form: word("tcp"), doc: "carry any bytes, unjudged; allow only", absent: "HTTP and TLS"},
		{
			name: "cidrs", form: &form{list: cidrForm},
			doc: "beside hosts: special-purpose ranges that they may resolve to; without hosts: the addresses that the rule is about",
		},
	}
}

var allowForm = &form{what: "allow", keys: matchKeys(methodForm), extra: object{"allOf": []any{
	both("host", "hosts"), both("access", "methods"),
	object{"anyOf": needsOne("host", "hosts", "cidrs")},
	object{"if": object{"required": []string{"protocol"}}, "then": without("methods", "access", "paths", "headers", "query")},
	object{"properties": object{"methods": object{"items": object{"not": object{"enum": []string{"TRACE", "TRACK", "CONNECT"}}}}}},
}}}

var denyForm = &form{what: "deny", keys: matchKeys(methodForm), extra: object{"allOf": []any{
	both("host", "hosts"), both("host", "cidrs"), both("hosts", "cidrs"), without("access", "protocol"),
	object{"anyOf": needsOne("host", "hosts", "cidrs")},
}}}

var ruleForm = &form{
	what: "a rule",
	extra: object{"oneOf": needsOne("allow", "deny"), "allOf": []any{
		object{"if": object{"required": []string{"deny"}}, "then": object{"allOf": []any{
			without("credential", "callers_key", "expires", "limits", "multi_tenant"),
			object{"properties": object{"tls": object{"const": "inspect"}, "mode": object{"not": object{"const": "learn"}}}},
		}}},
		object{"if": object{"required": []string{"allow", "tls"}, "properties": object{"tls": object{"const": "passthrough"}}}, "then": object{
			"properties": object{"credential": false, "allow": without("methods", "access", "paths", "headers", "query", "protocol")},
		}},
		object{
			"if":   object{"required": []string{"allow"}, "properties": object{"allow": object{"required": []string{"protocol"}}}},
			"then": without("credential"),
		},
	}},
	keys: []keyForm{
		{name: "id", required: true, form: idForm, doc: "the name in records and refusals; each stands once in a policy and all that it includes"},
		{name: "reason", required: true, form: textForm, doc: "why the rule is there, for the next reviewer; one that begins with `TODO` does not pass `lint --strict`"},
		{name: "ticket", form: textForm, doc: "where it was asked for"},
		{name: "owner", form: textForm, doc: "who answers for it"},
		{name: "expires", form: dateForm, doc: "the first day, in UTC, on which it no longer holds; allow only", absent: "it does not"},
		{name: "allow", form: allowForm, doc: "what is admitted; a rule has `allow` or `deny`"},
		{name: "deny", form: denyForm, doc: "what is refused, whatever allows it"},
		{name: "credential", form: idForm, doc: "what is added to the requests; allow only", absent: "nothing"},
		{name: "callers_key", form: word("refuse", "allow"), doc: "what becomes of a request that carries a key of the caller's own, on a host with a credential; allow only", absent: "`refuse`"},
		{name: "mode", form: modeForm, doc: "whether it is enforced", absent: "`enforce`"},
		{name: "tls", form: tlsForm, doc: "whether TLS is looked into; allow only", absent: "the default"},
		{name: "log", form: logForm, doc: "how much is recorded beside the decision", absent: "the default"},
		{name: "multi_tenant", form: word("acknowledged"), doc: "lets a wildcard stand on a domain that many tenants share; allow only"},
		{name: "limits", form: limitsForm, doc: "how much it admits; allow only", absent: "no limits"},
	},
}

var includeForm = &form{
	what: "an include", extra: object{"oneOf": needsOne("file", "preset", "detect"), "allOf": []any{
		object{"if": object{"required": []string{"preset"}}, "else": without("with", "credential")},
		object{"if": object{"required": []string{"detect"}}, "else": without("cidrs")},
	}},
	keys: []keyForm{
		{name: "file", form: alsoLike(pattern("path", `^`+stepBut(`/\\`)+`(/`+stepBut(`/\\`)+`)*$`), object{"pattern": likeText}), doc: "a policy file, from the directory of the file that includes it"},
		{name: "preset", form: &form{words: preset.Refs(), as: "one of [presets.md](presets.md)"}, doc: "rules that come with this program: `NAME@VERSION`"},
		{name: "with", form: mappingOf(&form{list: textForm, extra: object{"uniqueItems": true, "maxItems": maxValues}}, nil), doc: "values for the preset's parameters"},
		{name: "credential", form: idForm, doc: "what the preset's rules grant", absent: "nothing"},
		{name: "detect", form: listOf(word(detect.Names()...)), doc: "package managers whose configured servers may be read"},
		{name: "cidrs", form: &form{list: cidrForm}, doc: "private ranges in which those servers may be"},
	},
}

var neverForm = &form{
	what: "a statement", extra: object{"allOf": []any{
		both("host", "hosts"), object{"anyOf": needsOne("credential", "host", "hosts", "ports", "methods", "paths")},
	}},
	keys: []keyForm{
		{name: "credential", form: idForm, doc: "requests that are granted this credential"},
		{name: "host", form: hostForm, doc: "to this host", absent: "to any"},
		{name: "hosts", form: listOf(hostForm), doc: "to any of these"},
		{name: "ports", form: listOf(portForm), doc: "at these ports", absent: "at any"},
		{name: "methods", form: listOf(methodForm), doc: "with these methods", absent: "with any"},
		{name: "paths", form: &form{list: pathForm}, doc: "for these paths", absent: "for any"},
		{name: "reason", form: textForm, doc: "why, for people"},
	},
}

func testForm() *form {
	return &form{
		what: "a test", extra: object{
			"oneOf": needsOne("request", "connect", "dns"),
			"if":    needsAll("request"), "else": without("headers", "body"),
		},
		keys: []keyForm{
			{name: "request", form: pattern("METHOD URL", "^["+likeField+"]{1,32} https?://[^ /]"), doc: "a request, judged from the connection to the path"},
			{name: "connect", form: pattern("host:port", "^[^ ]+:[0-9]+$"), doc: "a stream"},
			{name: "dns", form: pattern("TYPE name", "^("+strings.Join(slices.Sorted(maps.Keys(rrTypes)), "|")+") [^ ]+$"), doc: "a DNS query"},
			{name: "expect", required: true, form: word("allow", "deny"), doc: "what must come out"},
			{name: "rule", form: textForm, doc: "the rule that must decide"},
			{name: "credential", form: textForm, doc: "the credential that must be granted"},
			{name: "reason", form: word(reasonNames()...), doc: "the reason that must be given"},
			{name: "at", form: dateForm, doc: "the day at whose beginning it is asked", absent: "a day on which no rule has expired"},
			{name: "headers", form: &form{values: textForm, extra: object{"propertyNames": object{"pattern": likeHeader}}}, doc: "the header fields of the request", absent: "none"},
			{name: "body", form: sizeForm, doc: "how large the request's body is", absent: "it has none"},
		},
	}
}

var defaultsForm = &form{what: "defaults", keys: []keyForm{
	{name: "ports", form: listOf(portForm), doc: "of allow rules that name none", absent: "`[443]`"},
	{name: "methods", form: listOf(methodForm), doc: "of allow rules that name none", absent: "`[GET, HEAD]`"},
	{name: "tls", form: tlsForm, doc: "of allow rules that say nothing", absent: "`inspect`"},
	{name: "log", form: logForm, doc: "of rules that say nothing", absent: "`metadata`"},
	{name: "limits", form: limitsForm, doc: "of allow rules, each limit that a rule does not name", absent: "no limits"},
}}

var dnsForm = &form{what: "dns", keys: []keyForm{
	{name: "denied", form: word("explain", "nxdomain"), doc: "how a denied name is answered: with an address at which the refusal is said, or not at all", absent: "`explain`"},
	{name: "resolve", form: &form{list: lookupForm}, doc: "what the gateway looks up for a sandbox, and answers with records of its own", absent: "nothing"},
}}

var lookupForm = &form{what: "a look-up", keys: []keyForm{
	{name: "host", required: true, form: pattern("name", `^`+likeName+`$`), doc: "the one name, which an allow rule must be about; for `_https._tcp.example.com`, one about `example.com`"},
	{name: "types", required: true, form: listOf(word(lookupTypes...)), doc: "the types of record"},
}}

// presetForm is of the files that this program brings along: nobody else writes
// them, so that no schema has it.
func presetForm() *form {
	return &form{what: "a preset", keys: []keyForm{
		{name: "apiVersion", form: word(APIVersion)},
		{name: "kind", form: word(KindPreset)},
		{name: "metadata", form: metadataForm},
		{name: "version", form: &form{typ: "integer"}},
		{name: "leaks", form: &form{typ: "string"}},
		{name: "parameters", form: &form{list: &form{what: "a parameter", keys: []keyForm{
			{name: "name", form: &form{typ: "string"}},
			{name: "type", form: &form{typ: "string"}},
			{name: "description", form: &form{typ: "string"}},
			{name: "example", form: listOf(&form{typ: "string"})},
		}}}},
		{name: "rules", form: anyListOf(ruleForm)},
		{name: "tests", form: &form{list: testForm()}},
	}}
}

// policyForm is a policy file.
func policyForm() *form {
	return &form{what: "a policy", extra: object{"anyOf": needsOne("rules", "include")}, keys: []keyForm{
		{name: "apiVersion", required: true, form: word(APIVersion), doc: "the version of the language"},
		{name: "kind", required: true, form: word(KindPolicy), doc: "the kind of document"},
		{name: "metadata", required: true, form: metadataForm, doc: "what the policy says about itself"},
		{name: "mode", form: modeForm, doc: "whether the policy is enforced", absent: "`enforce`"},
		{name: "include", form: &form{list: includeForm}, doc: "files with further rules", absent: "none"},
		{name: "defaults", form: defaultsForm, doc: "what allow rules have where they say nothing"},
		{name: "dns", form: dnsForm, doc: "how names are answered"},
		{name: "limits", form: limitsForm, doc: "how much a run is admitted by all rules together", absent: "no limits"},
		{name: "rules", form: anyListOf(ruleForm), doc: "the rules; required, unless it includes some"},
		{name: "never", form: &form{list: neverForm}, doc: "what must not be admitted; proved whenever the policy is read", absent: "nothing"},
		{name: "tests", form: &form{list: testForm()}, doc: "what must hold, or the policy does not load", absent: "none"},
	}}
}
