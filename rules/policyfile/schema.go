package policyfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// Schema returns the JSON Schema (draft 2020-12) of policy and credential files,
// for editors. It accepts what loads, and no more than it must: public suffixes,
// IDNA, other files, ids and credentials that have to be known, what rules say
// together, statements and tests are the loader's alone.
func Schema() ([]byte, error) {
	kinds := []struct {
		kind, def string
		form      *form
	}{{KindPolicy, "policy", policyForm()}, {KindCredential, "credential", credentialForm()}}
	defs := object{}
	var names []string
	var each []any
	for _, k := range kinds {
		defs[k.def] = k.form.schema()
		names = append(names, k.kind)
		each = append(each, object{
			"if":   object{"required": []string{"kind"}, "properties": object{"kind": object{"const": k.kind}}},
			"then": object{"$ref": "#/$defs/" + k.def},
		})
	}
	text, err := json.MarshalIndent(object{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Sallyport policy and credential files, " + APIVersion,
		"type":    "object", "required": []string{"apiVersion", "kind"},
		"properties": object{"kind": object{"enum": names}},
		"allOf":      each, "$defs": defs,
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing the schema: %w", err)
	}
	return append(text, '\n'), nil
}

// schema returns the JSON Schema of a value.
func (f *form) schema() object {
	out := object{}
	switch {
	case f.keys != nil:
		props := object{}
		var required []string
		for _, k := range f.keys {
			s := k.form.schema()
			s["description"] = strings.ReplaceAll(k.doc, "`", "")
			props[k.name] = s
			if k.required {
				required = append(required, k.name)
			}
		}
		out["type"], out["additionalProperties"], out["properties"] = "object", false, props
		if required != nil {
			out["required"] = required
		}
	case f.values != nil:
		out["type"], out["additionalProperties"] = "object", f.values.schema()
	case f.list != nil:
		out["type"], out["items"] = "array", f.list.schema()
		if !f.empty {
			out["minItems"] = 1
		}
	case f.words != nil:
		out["enum"] = f.words
	default:
		if f.typ != "" {
			out["type"] = f.typ
		}
		if f.like != "" {
			out["pattern"] = f.like
		}
	}
	maps.Copy(out, f.extra)
	return out
}

// Reference returns the pages' tables of every key of policy, credential and
// gateway files, in Markdown.
func Reference() []byte {
	w := &reference{}
	w.WriteString("# Reference of policy files\n\nThis page is made of the schema that `sallyport policy schema` prints: " +
		"`make golden` writes it anew.\n[policy.md](policy.md) explains what the keys mean together.\n")
	for _, d := range []struct {
		title string
		form  *form
	}{{"Policy", policyForm()}, {"Credential", credentialForm()}, {"Gateway", gatewayForm()}} {
		w.section(2, d.title, d.form)
	}
	w.findings()
	return w.Bytes()
}
