package policyfile

var absForm = pattern("absolute path", `^/`)

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
		if settings := settingsForm(x.name); settings != nil {
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
		pairs = append(pairs, object{"if": is, "then": object{"properties": object{"placeholder": secretEnv}}})
	}
	s.extra = object{"allOf": pairs}
	s.keys = append(s.keys,
		keyForm{name: "endpoints", required: true, form: &form{list: endpointForm}, doc: "where it may go: the second lock, whatever a policy says"},
		keyForm{name: "source", required: true, form: sourceForm, doc: "where the secret is: one of these"},
		keyForm{name: "placeholder", form: placeholderForm, doc: "what the sandbox gets in its place", absent: "nothing"},
	)
	return s
}

var endpointForm = &form{what: "an endpoint", keys: []keyForm{
	{name: "host", required: true, form: pattern("host", `^([^A-Z*/@:\s.]+\.)*[^A-Z*/@:\s.]+$|^[0-9a-f:.]+$`), doc: "an exact host"},
	{name: "ports", form: listOf(portForm), doc: "its ports", absent: "`[443]`"},
	{name: "methods", form: listOf(methodForm), doc: "in upper case", absent: "every method"},
	{name: "paths", form: &form{list: pathForm}, doc: "as in a policy", absent: "every path"},
}}

var envForm = pattern("variable", `^[A-Z_][A-Z0-9_]{0,63}$`)

var placeholderForm = &form{what: "placeholder", keys: []keyForm{
	{name: "env", required: true, form: envForm, doc: "the variable that holds it"},
	{name: "secret_env", form: envForm, doc: "of types with a pair of keys: the variable that holds the second"},
}}

var sourceForm = &form{
	what: "source", extra: object{"minProperties": 1, "maxProperties": 1},
	keys: []keyForm{
		{name: "file", form: absForm, doc: "a file"},
		{name: "env", form: pattern("variable", `^[A-Za-z_][A-Za-z0-9_]{0,63}$`), doc: "a variable of the broker's own"},
		{name: "systemd", form: pattern("name", `^[^./][^/]*$`), doc: "a credential of the broker's unit"},
		{name: "exec", form: &form{list: textForm}, doc: "a command and its arguments, without a shell"},
		{name: "age", form: &form{what: "age", keys: []keyForm{
			{name: "file", required: true, form: absForm, doc: "a file that is encrypted with age"},
			{name: "identity", required: true, form: absForm, doc: "the file of the identity that opens it"},
		}}, doc: "an encrypted file"},
	},
}

var (
	asciiForm = pattern("printable ASCII", `^[ -~]*[!-~][ -~]*$`)
	urlForm   = pattern("https URL", `^https://[^/?#@]+[^?#]*$`)
	codeForm  = pattern("code", `^[a-z0-9-]+$`)
)

// settingsForm are the settings of a type of credential, nil if it has none.
func settingsForm(t CredentialType) *form {
	of := func(keys ...keyForm) *form { return &form{what: string(t), keys: keys} }
	switch t {
	case Header:
		return of(keyForm{name: "name", required: true, form: headerForm, doc: "of the header"},
			keyForm{name: "prefix", form: asciiForm, doc: "what stands before the secret"})
	case Basic:
		return of(keyForm{name: "username", required: true, form: pattern("printable ASCII without a colon", `^[ -9;-~]*[!-9;-~][ -9;-~]*$`), doc: "the user"})
	case Query:
		return of(keyForm{name: "param", required: true, form: pattern("name", `^[A-Za-z0-9._~-]+$`), doc: "the parameter"})
	case AWSSigV4:
		return of(keyForm{name: "regions", required: true, form: listOf(codeForm), doc: "that may be signed for"},
			keyForm{name: "services", required: true, form: listOf(codeForm), doc: "that may be signed for"})
	case JSONWebToken:
		return of(keyForm{name: "algorithm", required: true, form: word(jwtAlgorithms...), doc: "how it is signed"},
			keyForm{name: "key_id", form: asciiForm, doc: "the `kid` of the header"},
			keyForm{name: "life", form: &form{typ: "integer", as: "seconds", extra: object{"minimum": 1, "maximum": 3600}}, doc: "how long a token lasts", absent: "`300`"},
			keyForm{name: "claims", required: true, form: &form{values: textForm, extra: object{
				"minProperties": 1, "properties": object{"iat": false, "exp": false, "nbf": false, "jti": false},
			}}, doc: "what it says"})
	case GitHub:
		return of(keyForm{name: "app", required: true, form: asciiForm, doc: "its id or client id"},
			keyForm{name: "installation", required: true, form: countForm, doc: "its number"},
			keyForm{name: "api", form: urlForm, doc: "where the API is", absent: "`" + gitHubAPI + "`"},
			keyForm{name: "repositories", form: &form{list: pattern("name", `^[A-Za-z0-9._-]{1,100}$`)}, doc: "that a token is for", absent: "all of the installation's"},
			keyForm{name: "permissions", required: true, form: &form{values: word("read", "write", "admin"), extra: object{"minProperties": 1}}, doc: "that a token has"})
	case OAuth2Client:
		return of(keyForm{name: "token_url", required: true, form: urlForm, doc: "where tokens are asked for"},
			keyForm{name: "client_id", required: true, form: asciiForm, doc: "who asks"},
			keyForm{name: "scopes", form: listOf(pattern("scope", `^[!#-\[\]-~]+$`)), doc: "what for"},
			keyForm{name: "audience", form: asciiForm, doc: "whom the token is for"})
	default:
		return nil
	}
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
		{name: "log", form: &form{what: "log", keys: []keyForm{
			{name: "durability", form: word(string(DurableProcess), string(DurableDisk)), doc: "when a record counts as written", absent: "`process`"},
		}}, doc: "how the log is written"},
		{name: "credentials", form: absForm, doc: "the directory of credential files", absent: "those of the instance"},
	}}
}
