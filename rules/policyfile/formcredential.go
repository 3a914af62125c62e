package policyfile

var absForm = pattern("absolute path", `^(/|(/`+stepBut(`/`)+`)+)$`)

// credentialForm is a credential file.
func credentialForm() *form {
	s := &form{what: "a credential"}
	s.keys = []keyForm{
		{name: "apiVersion", required: true, form: word(APIVersion), doc: "the version of the language"},
		{name: "kind", required: true, form: word(KindCredential), doc: "the kind of document"},
		{name: "metadata", required: true, form: metadataForm, doc: "what the credential says about itself"},
		{name: "type", required: true, form: word(Types()...), doc: "how it signs"},
	}
	var pairs []any
	for _, x := range schemes {
		name := string(x.name)
		is := object{"required": []string{"type"}, "properties": object{"type": object{"const": name}}}
		if settings := settingsForm(&x); settings != nil {
			s.keys = append(s.keys, keyForm{name: name, form: settings, doc: "the settings of type `" + name + "`"})
			then := object{"required": []string{name}}
			if x.optional {
				then = object{}
			}
			pairs = append(pairs, object{"if": is, "then": then, "else": without(name)})
		}
		secretEnv := without("secret_env")
		if (&Scheme{Type: x.name}).Pair() {
			secretEnv = object{"required": []string{"secret_env"}}
		}
		file := object{}
		if x.name != GCPServiceAccount {
			file = object{"properties": object{"file": object{"const": false}}}
		}
		pairs = append(pairs, when(is, object{"properties": object{"placeholder": object{"allOf": []any{secretEnv, file}}}}))
	}
	public := object{"allOf": []any{
		has("type", string(OAuth2User)), object{"properties": object{string(OAuth2User): has("auth", PublicClient)}},
	}}
	pairs = append(pairs, object{
		"if": public, "then": object{"properties": object{"source": needsAll("none")}}, "else": object{"properties": object{"source": without("none")}},
	})
	s.extra = object{"allOf": pairs}
	s.keys = append(s.keys,
		keyForm{name: "endpoints", required: true, form: &form{list: endpointForm}, doc: "where it may go: the second lock, whatever a policy says"},
		keyForm{name: "keys_in", form: keysInForm, doc: "where the API takes keys beside the places that are known for it", absent: "nothing"},
		keyForm{name: "source", required: true, form: sourceForm, doc: "where the secret is: one of these"},
		keyForm{name: "placeholder", form: placeholderForm, doc: "what the sandbox gets in its place", absent: "nothing"},
	)
	return s
}

var endpointForm = &form{what: "an endpoint", keys: []keyForm{
	{name: "host", required: true, form: exactHostForm, doc: "an exact host"},
	{name: "ports", form: listOf(portForm), doc: "its ports", absent: "`[443]`"},
	{name: "methods", form: listOf(methodForm), doc: "in upper case", absent: "every method"},
	{name: "paths", form: &form{list: pathForm}, doc: "as in a policy", absent: "every path"},
}}

var keysInForm = &form{what: "keys_in", extra: object{"minProperties": 1}, keys: []keyForm{
	{name: "headers", form: &form{list: tokenForm}, doc: "header fields"},
	{name: "cookies", form: &form{list: fieldForm}, doc: "cookies"},
	{name: "params", form: &form{list: fieldForm}, doc: "parameters of the query"},
	{name: "json", form: &form{list: fieldForm}, doc: "members of a JSON body, with dots between nested ones"},
	{name: "form", form: &form{list: fieldForm}, doc: "fields of a form body"},
	{name: "multipart", form: &form{list: fieldForm}, doc: "fields of a multipart body"},
}}

var envForm = pattern("variable", `^[A-Z_][A-Z0-9_]{0,63}$`)

// sandboxEnvForm is a variable that may hold a placeholder.
var sandboxEnvForm = alsoLike(envForm, object{"not": object{"enum": ownEnvs}}, notLike(`^(LD_|SALLYPORT_)|_PROXY$`))

var placeholderForm = &form{what: "placeholder", keys: []keyForm{
	{name: "env", required: true, form: sandboxEnvForm, doc: "the variable that holds it"},
	{name: "secret_env", form: sandboxEnvForm, doc: "of types with a pair of keys: the variable that holds the second"},
	{name: "file", form: boolForm, doc: "of type `gcp-service-account`: the variable names a key file that holds it", absent: "`false`"},
}}

// sourceKinds are the stores of which a source names one.
var sourceKinds = []string{"file", "env", "systemd", "exec", "age", "vault", "kubernetes", "none"}

var sourceForm = &form{
	what: "source", extra: object{"oneOf": needsOne(sourceKinds...)},
	keys: []keyForm{
		{name: "file", form: absForm, doc: "a file"},
		{name: "env", form: pattern("variable", `^[A-Za-z_][A-Za-z0-9_]{0,63}$`), doc: "a variable of the broker's own"},
		{name: "systemd", form: alsoLike(pattern("name", `^[^./\x00][^/\x00]*$`), object{"pattern": likeText}), doc: "a credential of the broker's unit"},
		{name: "exec", form: execForm, doc: "a command and its arguments, without a shell"},
		{name: "age", form: &form{what: "age", keys: []keyForm{
			{name: "file", required: true, form: absForm, doc: "a file that is encrypted with age"},
			{name: "identity", required: true, form: absForm, doc: "the file of the identity that opens it"},
		}}, doc: "an encrypted file"},
		{name: "vault", form: vaultForm, doc: "a secret of a Vault server"},
		{name: "kubernetes", form: kubernetesForm, doc: "a secret of a Kubernetes cluster"},
		{name: "none", form: &form{typ: "boolean", extra: object{"const": true}}, doc: "there is no secret: a public client of type `oauth2-user`", absent: "`false`"},
		{name: "on_error", form: word("refuse", "keep"), doc: "what to do if a secret that was read cannot be read again", absent: "`refuse`"},
	},
}

var serverForm = pattern("https address", `^https://[^A-Z/?#@\s*]+$`)

// execForm is a command, an absolute path, and its arguments.
var execForm = &form{list: alsoLike(textForm, notLike(`\x00`)), extra: object{"prefixItems": []any{object{"type": "string", "pattern": absForm.like}}}}

var vaultForm = &form{
	what: "vault", extra: object{"oneOf": needsOne("token_file", "approle", "kubernetes")},
	keys: []keyForm{
		{name: "url", required: true, form: serverForm, doc: "the server"},
		{name: "mount", form: storeForm, doc: "where the engine is mounted", absent: "`" + vaultMount + "`"},
		{name: "path", required: true, form: storeForm, doc: "of the secret"},
		{name: "field", required: true, form: textForm, doc: "of the secret"},
		{name: "namespace", form: printableForm, doc: "of the server"},
		{name: "cidrs", form: &form{list: cidrForm}, doc: "private ranges in which the server may be"},
		{name: "token_file", form: absForm, doc: "a way to log in: a token"},
		{name: "approle", form: &form{what: "approle", keys: []keyForm{
			{name: "role_id", required: true, form: printableForm, doc: "the role"},
			{name: "secret_id_file", required: true, form: absForm, doc: "the file of its secret id"},
			{name: "mount", form: storeForm, doc: "of the method", absent: "`approle`"},
		}}, doc: "a way to log in: a role"},
		{name: "kubernetes", form: &form{what: "kubernetes", keys: []keyForm{
			{name: "role", required: true, form: printableForm, doc: "the role"},
			{name: "token_file", form: absForm, doc: "of the service account"},
			{name: "mount", form: storeForm, doc: "of the method", absent: "`kubernetes`"},
		}}, doc: "a way to log in: a service account"},
	},
}

// storeStep is one step of a path in a store.
var storeStep = stepOf(`A-Za-z0-9_-`)

var (
	storeForm = pattern("path", `^`+storeStep+`(/`+storeStep+`)*$`)
	stepForm  = pattern("name", `^`+storeStep+`$`)
)

var kubernetesForm = &form{what: "kubernetes", extra: object{
	"if": needsAll("mount"), "then": without("namespace", "secret", "api", "token_file", "cidrs"), "else": needsAll("namespace", "secret"),
}, keys: []keyForm{
	{name: "key", required: true, form: stepForm, doc: "of the secret"},
	{name: "mount", form: absForm, doc: "the directory that it is mounted at"},
	{name: "namespace", form: stepForm, doc: "where it is not mounted: its namespace"},
	{name: "secret", form: stepForm, doc: "and its name"},
	{name: "api", form: serverForm, doc: "the API server"},
	{name: "token_file", form: absForm, doc: "of the service account"},
	{name: "cidrs", form: &form{list: cidrForm}, doc: "private ranges in which the server may be"},
}}

// settingsForm are the settings of a type of credential, nil if it has none. They
// are taken from the reader's own table.
func settingsForm(x *scheme) *form {
	if x.keys == nil {
		return nil
	}
	out := keysForm(string(x.name), "of type `"+string(x.name)+"`", x.keys(&file{}, &Scheme{Type: x.name}))
	out.extra = x.together
	return out
}

// keysForm is a mapping with the keys of a table of the reader's.
func keysForm(what, doc string, keys []key) *form {
	out := &form{what: what}
	for _, k := range keys {
		out.keys = append(out.keys, keyForm{name: k.name, required: k.required, form: k.form, doc: doc})
	}
	return out
}

// gatewayForm is the configuration of the gateway.
func gatewayForm() *form {
	return &form{what: "a gateway", keys: []keyForm{
		{name: "apiVersion", required: true, form: word(APIVersion), doc: "the version of the language"},
		{name: "kind", required: true, form: word(KindGateway), doc: "the kind of document"},
		{name: "metadata", form: metadataForm, doc: "what the configuration says about itself"},
		{name: "hosts", form: &form{values: &form{list: textForm}}, doc: "names that are not looked up, with their addresses", absent: "none"},
		{name: "upstream_ca", form: &form{list: absForm}, doc: "files with further authorities for upstream certificates", absent: "those of the system"},
		{name: "resolvers", form: &form{list: textForm}, doc: "the servers to ask", absent: "those of the system"},
		{name: "upstream_proxy", form: &form{what: "upstream_proxy", keys: []keyForm{
			{name: "address", required: true, form: textForm, doc: "address and port"},
			{name: "user", form: textForm, doc: "who asks"},
			{name: "password_file", form: absForm, doc: "the file of the password"},
		}}, doc: "a proxy on the way to every upstream", absent: "none"},
		{name: "log", form: &form{what: "log", keys: []keyForm{
			{name: "durability", form: word(string(DurableProcess), string(DurableDisk)), doc: "when a record counts as written", absent: "`process`"},
			{name: "keep", form: textForm, doc: "how long records are kept, such as `90d`", absent: "for ever"},
			{name: "anchors", form: &form{list: &form{what: "an anchor", keys: []keyForm{
				{name: "file", form: absForm, doc: "a file"},
				{name: "command", form: &form{list: textForm}, doc: "a command"},
				{name: "url", form: textForm, doc: "a server"},
			}}}, doc: "where checkpoints are copied to", absent: "nowhere"},
			{name: "capture", form: &form{what: "capture", keys: []keyForm{
				{name: "recipient", form: textForm, doc: "whose key what is kept is encrypted for"},
				{name: "size", form: textForm, doc: "how much of a body is kept"},
				{name: "headers", form: &form{list: textForm}, doc: "headers that are left out"},
				{name: "fields", form: &form{list: textForm}, doc: "fields that are left out"},
			}}, doc: "what `log: request` keeps of bodies"},
		}}, doc: "how the log is written"},
		{name: "credentials", form: absForm, doc: "the directory of credential files", absent: "those of the instance"},
		{name: "metrics", form: textForm, doc: "address and port at which metrics are told", absent: "nowhere"},
		{name: "bounds", form: &form{what: "bounds", keys: []keyForm{
			{name: "connections", form: numberForm(1, maxBound), doc: "open at once", absent: "2048"},
			{name: "requests", form: numberForm(1, maxBound), doc: "under way at once", absent: "1024"},
			{name: "requests_per_second", form: numberForm(1, maxBound), doc: "requests and streams that begin in a second; what comes faster waits for up to a second", absent: "1000 for each processor"},
			{name: "lifetime", form: numberForm(60, maxLifetime), doc: "seconds after which a connection is ended, whatever passes on it", absent: "86400"},
		}}, doc: "what one cell may have the gateway hold and do, whatever its policy says", absent: "the defaults"},
	}}
}
