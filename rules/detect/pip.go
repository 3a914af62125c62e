package detect

import (
	"maps"
	"strings"
)

// pip: its configuration files and variables (pip help config).
var pip = Manager{
	Name:    "pip",
	Files:   []string{"/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf"},
	Vars:    []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"},
	Setting: "[global] index-url = https://… in /etc/pip.conf, or PIP_INDEX_URL",
	parse:   parsePip,
}

func parsePip(f *finder) {
	// A later file's option takes the place of an earlier one's, a variable of all.
	options := map[string][]setting{}
	for _, file := range f.Files {
		here := map[string][]setting{}
		f.ini(file, func(key string, s setting) {
			for v := range strings.FieldsSeq(s.value) {
				here[key] = append(here[key], setting{v, s.file, s.line})
			}
		})
		maps.Copy(options, here)
	}
	for key, name := range map[string]string{
		"index-url": "PIP_INDEX_URL", "extra-index-url": "PIP_EXTRA_INDEX_URL", "find-links": "PIP_FIND_LINKS", "no-index": "PIP_NO_INDEX",
	} {
		s, ok := f.env(name)
		if !ok {
			continue
		}
		options[key] = nil
		for v := range strings.FieldsSeq(s.value) {
			options[key] = append(options[key], setting{v, s.file, 0})
		}
	}
	for _, s := range options["find-links"] {
		if isURL(s.value) {
			f.add(s)
		}
	}
	for _, s := range options["no-index"] {
		switch s.value {
		case "1", "true", "True", "yes", "on":
			return
		}
	}
	for _, key := range []string{"index-url", "extra-index-url"} {
		for _, s := range options[key] {
			f.add(s)
		}
	}
}

// ini reads sections of keys and values as Python's configparser does: an indented
// line goes on with the value before it. Sections make no difference here.
func (f *finder) ini(file File, read func(key string, s setting)) {
	key := ""
	f.lines(file, func(n int, line string) {
		text := strings.TrimLeft(line, " \t")
		switch {
		case text[0] == '#' || text[0] == ';':
		case text[0] == '[':
			key = ""
		case text != line && key != "": // indented
			read(key, setting{text, file.Path, n})
		default:
			i := strings.IndexAny(text, "=:")
			if i < 0 {
				f.fault(file.Path, n, "not a key with a value")
				return
			}
			key = strings.ReplaceAll(strings.TrimSpace(text[:i]), "_", "-")
			read(key, setting{strings.TrimSpace(text[i+1:]), file.Path, n})
		}
	})
}
