package detect

import "strings"

// yarn reads npm's files too (version 1), and its own: .yarnrc (version 1) and
// .yarnrc.yml (since version 2).
var yarn = Manager{
	Name:    "yarn",
	Files:   append(append([]string{}, npm.Files...), "/etc/yarnrc", "/usr/local/share/.yarnrc", "~/.yarnrc", "~/.yarnrc.yml"),
	Vars:    yarnVars,
	Setting: "npmRegistryServer: \"https://…\" in ~/.yarnrc.yml, or YARN_NPM_REGISTRY_SERVER",
	parse:   parseYarn,
}

var yarnVars = []string{"YARN_NPM_REGISTRY_SERVER", "YARN_REGISTRY", "yarn_config_registry", "npm_config_registry", "NPM_CONFIG_REGISTRY"}

func parseYarn(f *finder) {
	values := map[string]setting{}
	all := f.Files
	f.Files = f.named("*npmrc")
	npmFiles := &finder{Config: f.Config}
	npmFiles.npmrc()
	f.errs, f.Files = npmFiles.errs, all
	for _, file := range f.named("*yarnrc") {
		f.lines(file, func(n int, line string) {
			key, value, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
			if key = unquote(key); key == "registry" || strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry") {
				values[key] = setting{unquote(value), file.Path, n}
			}
		})
	}
	// Only one key of the YAML matters, at any depth (it stands in npmScopes too), and
	// it fits on a line: a parser of YAML would have more to get wrong.
	for _, file := range f.named("*.yml") {
		f.lines(file, func(n int, line string) {
			key, value, ok := strings.Cut(strings.TrimLeft(line, " \t"), ":")
			if ok && unquote(key) == "npmRegistryServer" {
				value, _, _ = strings.Cut(value, " #")
				values[place(file.Path, n)] = setting{unquote(value), file.Path, n}
			}
		})
	}
	if s, ok := f.env(yarnVars...); ok {
		delete(values, "registry")
		values["variable"] = s
	}
	if len(values) == 0 {
		f.found = npmFiles.found
	}
	f.addAll(values)
}
