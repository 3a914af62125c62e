package launcher

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sallyport/control"
)

// Paths inside a sandbox.
const (
	workspaceDir = "/workspace"
	homeDir      = "/tmp/home"
	trustDir     = "/etc/sallyport"
	caFile       = trustDir + "/ca.crt"
	bundleFile   = trustDir + "/ca-bundle.crt"
	javaStore    = trustDir + "/cacerts.jks"
)

// variable is one of the environment and why it is there.
type variable struct{ name, value string }

// egress is the part of the environment that has clients use the explicit
// listener and trust our CA. No two families of clients agree on names, hence
// the length of it; a client that heeds none of them still works by way of the
// transparent listener and the system's bundle.
func egress(proxy netip.AddrPort) []variable {
	url := "http://" + proxy.String()
	host, port := proxy.Addr().String(), strconv.Itoa(int(proxy.Port()))
	// Nothing but loopback: what is exempted is tried directly, in vain.
	const direct = "localhost,127.0.0.1,::1"
	return []variable{
		// Both cases: curl, wget, apt and Ruby read lower case only, .NET upper.
		{"HTTP_PROXY", url},
		{"HTTPS_PROXY", url},
		{"http_proxy", url},
		{"https_proxy", url},
		{"NO_PROXY", direct},
		{"no_proxy", direct},
		{"grpc_proxy", url},
		{"YARN_HTTP_PROXY", url},
		{"YARN_HTTPS_PROXY", url},
		{"NODE_USE_ENV_PROXY", "1"},
		{"NODE_USE_SYSTEM_CA", "1"},
		{"NODE_EXTRA_CA_CERTS", caFile},
		{"SSL_CERT_FILE", bundleFile},
		{"REQUESTS_CA_BUNDLE", bundleFile},
		{"CURL_CA_BUNDLE", bundleFile},
		{"GIT_SSL_CAINFO", bundleFile},
		{"PIP_CERT", bundleFile},
		{"AWS_CA_BUNDLE", bundleFile},
		{"CARGO_HTTP_CAINFO", bundleFile},
		{"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", bundleFile},
		{"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", bundleFile},
		{"YARN_HTTPS_CA_FILE_PATH", bundleFile},
		{"DENO_CERT", caFile},
		{"DENO_TLS_CA_STORE", "system,mozilla"},
		{"UV_SYSTEM_CERTS", "1"},
		{"CODEX_CA_CERTIFICATE", bundleFile},
		// Java reads none of the above.
		{"JAVA_TOOL_OPTIONS", fmt.Sprintf("-Dhttp.proxyHost=%s -Dhttp.proxyPort=%s -Dhttps.proxyHost=%s -Dhttps.proxyPort=%s"+
			" -Djavax.net.ssl.trustStore=%s -Djavax.net.ssl.trustStoreType=JKS", host, port, host, port, javaStore)},
		// Clients that would ask for credentials or versions at places they never reach.
		{"AWS_EC2_METADATA_DISABLED", "true"},
		{"CHECKPOINT_DISABLE", "1"},
		// No ssh leads out: clone over https what is spelled for ssh. And several versions of curl, Debian 12's
		// among them, now and then wait forever in an HTTP/2 upload that is longer than the window.
		{"GIT_CONFIG_COUNT", "3"},
		{"GIT_CONFIG_KEY_0", "url.https://github.com/.insteadOf"},
		{"GIT_CONFIG_VALUE_0", "git@github.com:"},
		{"GIT_CONFIG_KEY_1", "url.https://github.com/.insteadOf"},
		{"GIT_CONFIG_VALUE_1", "ssh://git@github.com/"},
		{"GIT_CONFIG_KEY_2", "http.version"},
		{"GIT_CONFIG_VALUE_2", "HTTP/1.1"},
	}
}

// hidden are variables that an image must not set, and nobody else: with them
// some clients go half around the proxy, others do not find the certificates.
var hidden = []string{"ALL_PROXY", "all_proxy", "SSL_CERT_DIR"}

// plain is the rest: a run's work reads and writes the same everywhere. Whoever
// asks for a run may say otherwise.
var plain = []variable{
	{"HOME", homeDir}, {"LANG", "C.UTF-8"}, {"LC_ALL", "C.UTF-8"}, {"TZ", "UTC"}, {"PYTHONUNBUFFERED", "1"},
}

// environment is what the work gets over the image's own.
func environment(proxy netip.AddrPort, cell, run string, grants []control.Grant, user []string) ([]string, error) {
	env := append(Environment(proxy), "SALLYPORT_CELL="+cell, "SALLYPORT_RUN="+run)
	given := names(user)
	for _, g := range grants {
		for _, v := range append([]control.Value{{Env: g.Env, Placeholder: g.Placeholder}}, g.More...) {
			switch {
			case v.Env == "":
			case !envName(v.Env) || protected(v.Env):
				return nil, fmt.Errorf("credential %q: its placeholder cannot be in a variable called %q", g.Credential, v.Env)
			case slices.Contains(given, v.Env):
				return nil, fmt.Errorf("variable %s: the policy's credential %q sets it", v.Env, g.Credential)
			case v.File:
				env = append(env, v.Env+"="+documentPath(g.Credential))
			default:
				env = append(env, v.Env+"="+v.Placeholder)
			}
		}
	}
	return append(env, user...), nil
}

// documentPath is where a sandbox has the document of a credential, such as a key
// file: beside the certificates, and read-only as they are.
func documentPath(credential string) string { return path.Join(trustDir, "credentials", credential) }

// documents are what stands in files inside, by path.
func documents(grants []control.Grant) map[string]string {
	out := map[string]string{}
	for _, g := range grants {
		for _, v := range g.More {
			if v.File {
				out[documentPath(g.Credential)] = v.Placeholder
			}
		}
	}
	return out
}

// Environment is what every sandbox has, with the explicit listener at proxy:
// NAME=value in the order of their reasons. A run adds its own name, placeholders
// and what the user gives.
func Environment(proxy netip.AddrPort) []string {
	var env []string
	for _, v := range append(egress(proxy), plain...) {
		env = append(env, v.name+"="+v.value)
	}
	return env
}

// names are those of variables, sorted.
func names(env []string) []string {
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		out = append(out, name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// protected says whether a variable is ours alone: one wrong value, and a client
// does not find its way out or does not trust what it finds.
func protected(name string) bool {
	if slices.Contains(hidden, name) || strings.HasPrefix(name, "SALLYPORT_") || strings.HasPrefix(name, "GIT_CONFIG_") {
		return true
	}
	return slices.ContainsFunc(egress(netip.AddrPort{}), func(v variable) bool { return v.name == name })
}

// envName says whether a shell could set a variable of that name.
func envName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

type shape struct {
	what    string
	pattern *regexp.Regexp
}

// secrets returns the shapes of well-known kinds of secrets. The list does not
// need to be long: it is there to catch a habit, not an adversary. They are
// compiled when they are first wanted, which they are not in a guest.
var secrets = sync.OnceValue(func() []shape {
	return []shape{
		{"a private key", regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----`)},
		{"an AWS access key", regexp.MustCompile(`\b(AKIA|ASIA)[A-Z0-9]{16}\b`)},
		{"a GitHub token", regexp.MustCompile(`\b(gh[pousr]_|github_pat_)[A-Za-z0-9_]{20}`)},
		{"a GitLab token", regexp.MustCompile(`\bglpat-[A-Za-z0-9_-]{16}`)},
		{"a Slack token", regexp.MustCompile(`\bxox[abeprs]-[A-Za-z0-9-]{8}`)},
		{"an API key", regexp.MustCompile(`\b(sk|rk|pk)[-_][A-Za-z0-9_-]{16}`)},
		{"a Google API key", regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{30}`)},
		{"a package registry token", regexp.MustCompile(`\b(npm_|pypi-)[A-Za-z0-9_-]{30}`)},
		{"a JSON web token", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.`)},
		{"a URL with a password", regexp.MustCompile(`[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@`)},
	}
})

// checkEnv refuses variables that are ours, and values that a sandbox must not
// have. A value is never repeated.
func checkEnv(env []string) error {
	var errs []error
	size := 0
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		size += len(kv)
		switch {
		case !ok || !envName(name):
			errs = append(errs, fmt.Errorf("variable %.40q: want NAME=value", name))
			continue
		case strings.ContainsRune(value, 0):
			errs = append(errs, fmt.Errorf("variable %s: its value has a zero octet", name))
		case protected(name):
			errs = append(errs, fmt.Errorf("variable %s: it is set by the launcher, so that clients find the gateway and trust it", name))
		}
		for _, s := range secrets() {
			if s.pattern.MatchString(value) {
				errs = append(errs, fmt.Errorf("variable %s: its value looks like %s, and a sandbox must not hold one: "+
					"make it a credential (kind: Credential, placeholder: {env: %s}) and name it in a rule of the policy", name, s.what, name))
				break
			}
		}
	}
	if size > maxEnv {
		errs = append(errs, fmt.Errorf("variables of %d octets: at most %d", size, maxEnv))
	}
	if n := names(env); len(n) != len(env) {
		errs = append(errs, errors.New("a variable is given twice"))
	}
	return errors.Join(errs...)
}
