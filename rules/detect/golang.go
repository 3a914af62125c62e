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
	proxies := values["GOPROXY"]
	for v := range strings.FieldsFuncSeq(proxies.value, func(r rune) bool { return r == ',' || r == '|' }) {
		switch v = strings.TrimSpace(v); {
		case v == "direct" || v == "off" || v == "" || strings.HasPrefix(v, "file://"):
		default:
			f.add(setting{v, proxies.file, proxies.line})
		}
	}
	// NAME, NAME+HASH+KEY, or either with an address after a blank.
	sum := values["GOSUMDB"]
	switch fields := strings.Fields(sum.value); {
	case len(fields) == 0 || fields[0] == "off":
	case len(fields) > 1:
		f.add(setting{fields[1], sum.file, sum.line})
	default:
		name, _, _ := strings.Cut(fields[0], "+")
		host, _, _ := strings.Cut(name, "/")
		f.addHost(setting{host, sum.file, sum.line}, 443)
	}
}
