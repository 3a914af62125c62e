package detect

import "strings"

// cargo: sources and registries of config.toml (The Cargo Book, Configuration).
var cargo = Manager{
	Name: "cargo",
	Files: []string{
		"/usr/local/cargo/config.toml", "/usr/local/cargo/config", "~/.cargo/config.toml", "~/.cargo/config",
	},
	Vars:    []string{"CARGO_REGISTRIES_*"},
	Setting: "[source.crates-io] replace-with = \"mirror\" and [source.mirror] registry = \"sparse+https://…\" in ~/.cargo/config.toml",
	parse:   parseCargo,
}

const sparse = "sparse+"

func parseCargo(f *finder) {
	values := map[string]setting{}
	for _, file := range f.Files {
		section := ""
		f.lines(file, func(n int, line string) {
			text := strings.TrimSpace(line)
			if strings.HasPrefix(text, "[") {
				section = tomlKey(strings.Trim(text[:strings.LastIndexByte(text, ']')+1], "[]"))
				return
			}
			key, value, ok := strings.Cut(text, "=")
			if !ok || strings.HasPrefix(text, "#") {
				return
			}
			if key = tomlKey(key); section != "" {
				key = section + "." + key
			}
			f.cargoValue(values, key, setting{strings.TrimSpace(value), file.Path, n})
		})
	}
	for _, s := range f.envs("CARGO_REGISTRIES_", "_INDEX") {
		values[s.file] = s
	}
	for _, s := range values {
		switch rest, ok := strings.CutPrefix(s.value, sparse); {
		case ok:
			f.add(setting{rest, s.file, s.line})
		case isURL(s.value):
			f.fault(s.file, s.line, "an index in git is not read by GET alone; use one that begins with %shttps://", sparse)
		}
	}
}

// cargoValue takes source.NAME.registry and registries.NAME.index, and whole tables
// on a line only to refuse them.
func (f *finder) cargoValue(values map[string]setting, key string, s setting) {
	parts := strings.Split(key, ".")
	last := parts[len(parts)-1]
	top := parts[0] == "source" || parts[0] == "registries"
	switch {
	case top && strings.HasPrefix(s.value, "{"):
		f.fault(s.file, s.line, "a table on one line is not read here; write it with a heading [%s]", key)
	case parts[0] == "source" && last == "registry", parts[0] == "registries" && last == "index":
		value := s.value
		if !strings.HasPrefix(value, `"`) && !strings.HasPrefix(value, "'") {
			f.fault(s.file, s.line, "not text in quotes")
			return
		}
		end := strings.IndexByte(value[1:], value[0])
		if end < 0 {
			f.fault(s.file, s.line, "text that does not end on its line")
			return
		}
		values[key] = setting{value[1 : 1+end], s.file, s.line}
	}
}

// tomlKey writes a dotted key without blanks and quotes.
func tomlKey(s string) string {
	parts := strings.Split(strings.TrimSpace(s), ".")
	for i, p := range parts {
		parts[i] = unquote(p)
	}
	return strings.Join(parts, ".")
}
