package detect

import "strings"

// golang is the go command: GOPROXY and GOSUMDB out of the environment, the user's
// file, or the one of the toolchain (go help env, go help goproxy).
var golang = Manager{
	Name:    "go",
	Files:   []string{"/usr/local/go/go.env", "/usr/lib/go/go.env", "/usr/lib/go-*/go.env", "/usr/share/go-*/go.env", "~/.config/go/env"},
	Vars:    []string{"GOPROXY", "GOSUMDB"},
	Setting: "go env -w GOPROXY=https://…, or GOPROXY",
	parse:   parseGo,
}

func parseGo(f *finder) {
	values := map[string]setting{}
	for _, file := range f.Files {
		f.lines(file, func(n int, line string) {
			key, value, _ := strings.Cut(line, "=")
			if key == "GOPROXY" || key == "GOSUMDB" {
				values[key] = setting{unquote(value), file.Path, n}
			}
		})
	}
	for _, name := range []string{"GOPROXY", "GOSUMDB"} {
		if s, ok := f.env(name); ok {
			values[name] = s
		}
	}
	f.goProxies(values["GOPROXY"])
	f.goSums(values["GOSUMDB"])
}

// goProxies takes a list of addresses; direct and off are words, not addresses.
func (f *finder) goProxies(s setting) {
	for v := range strings.FieldsFuncSeq(s.value, func(r rune) bool { return r == ',' || r == '|' }) {
		v = strings.TrimSpace(v)
		if v != "direct" && v != "off" && v != "" && !strings.HasPrefix(v, "file://") {
			f.add(setting{v, s.file, s.line})
		}
	}
}

// goSums takes NAME, NAME+HASH+KEY, or either with an address after a blank.
func (f *finder) goSums(s setting) {
	switch fields := strings.Fields(s.value); {
	case len(fields) == 0 || fields[0] == "off":
	case len(fields) > 1:
		f.add(setting{fields[1], s.file, s.line})
	default:
		name, _, _ := strings.Cut(fields[0], "+")
		host, _, _ := strings.Cut(name, "/")
		f.addHost(setting{host, s.file, s.line}, 443)
	}
}
