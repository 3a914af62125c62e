package policyfile

// FormKeys are the keys of each mapping that forms describe, by what errors call
// it; a key that is required has a star.
func FormKeys() map[string][]string {
	out := map[string][]string{}
	var walk func(*form)
	walk = func(f *form) {
		if f == nil {
			return
		}
		for _, k := range f.keys {
			name := k.name
			if k.required && k.name != "apiVersion" && k.name != "kind" { // those are checked before
				name += "*"
			}
			out[f.what] = append(out[f.what], name)
		}
		for _, k := range f.keys {
			walk(k.form)
		}
		walk(f.list)
		walk(f.values)
	}
	for _, f := range []*form{policyForm(), credentialForm(), gatewayForm()} {
		walk(f)
	}
	return out
}
