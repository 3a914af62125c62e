package detect

import "strings"

// npm: npmrc(5).
var npm = Manager{
	Name:    "npm",
	Files:   []string{"/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", "~/.npmrc"},
	Vars:    []string{"npm_config_registry", "NPM_CONFIG_REGISTRY"},
	Setting: "registry=https://… in ~/.npmrc or /usr/local/etc/npmrc, or npm_config_registry",
	parse:   func(f *finder) { f.npmrc("npm_config_registry", "NPM_CONFIG_REGISTRY") },
}

// pnpm reads npm's files and one of its own.
var pnpm = Manager{
	Name:    "pnpm",
	Files:   append(append([]string{}, npm.Files...), "~/.config/pnpm/rc"),
	Vars:    []string{"pnpm_config_registry", "PNPM_CONFIG_REGISTRY", "npm_config_registry", "NPM_CONFIG_REGISTRY"},
	Setting: "registry=https://… in ~/.npmrc, or npm_config_registry",
	parse: func(f *finder) {
		f.npmrc("pnpm_config_registry", "PNPM_CONFIG_REGISTRY", "npm_config_registry", "NPM_CONFIG_REGISTRY")
	},
}

// npmrc reads lines of key=value: registry, and @SCOPE:registry. A later file's
// value takes the place of an earlier one's.
func (f *finder) npmrc(vars ...string) {
	values := map[string]setting{}
	for _, file := range f.Files {
		f.lines(file, func(n int, line string) {
			key, value, _ := strings.Cut(strings.TrimLeft(line, " \t"), "=")
			if key = strings.TrimSpace(key); key == "registry" || strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry") {
				values[key] = setting{unquote(value), file.Path, n}
			}
		})
	}
	if s, ok := f.env(vars...); ok {
		values["registry"] = s
	}
	f.addAll(values)
}

// addAll takes every value, with the variables in it.
func (f *finder) addAll(values map[string]setting) {
	for _, s := range values {
		if strings.Contains(s.value, "${") {
			f.fault(s.file, s.line, "the address holds a variable; write the address itself")
			continue
		}
		f.add(s)
	}
}
