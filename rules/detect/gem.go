package detect

import "strings"

// gem: the sources of a gemrc (gem help env), and Bundler's mirrors (bundle
// config).
var gem = Manager{
	Name:    "gem",
	Files:   []string{"/etc/gemrc", "~/.gemrc", "~/.config/gem/gemrc", "/usr/local/bundle/config", "~/.bundle/config"},
	Vars:    []string{"BUNDLE_MIRROR__*"},
	Setting: ":sources: with a line - https://… in ~/.gemrc",
	parse:   parseGem,
}

const bundleMirror = "BUNDLE_MIRROR__"

func parseGem(f *finder) {
	for _, file := range f.named("*gemrc") {
		f.gemSources(file)
	}
	for _, file := range f.named("config") {
		f.lines(file, func(n int, line string) {
			key, value, ok := strings.Cut(line, ": ")
			if ok && strings.HasPrefix(key, bundleMirror) && isURL(value) {
				f.add(setting{unquote(value), file.Path, n})
			}
		})
	}
	for _, s := range f.envs(bundleMirror, "") {
		if isURL(s.value) { // others are settings of a mirror, not its address
			f.add(s)
		}
	}
}

// gemSources reads the list under sources, in lines or in brackets. It is the one
// list that matters, and a parser of YAML would have more to get wrong.
func (f *finder) gemSources(file File) {
	inside := false
	f.lines(file, func(n int, line string) {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "#") {
			return
		}
		if item, ok := strings.CutPrefix(text, "- "); ok {
			if inside {
				f.add(setting{unquote(item), file.Path, n})
			}
			return
		}
		key, value, _ := strings.Cut(text, ": ")
		key = strings.Trim(key, ":")
		if inside = key == "sources" || key == "source"; !inside {
			return
		}
		if value = strings.TrimSpace(value); value == "" {
			return
		}
		list, ok := strings.CutPrefix(value, "[")
		if list, end := strings.CutSuffix(list, "]"); ok && end {
			for v := range strings.SplitSeq(list, ",") {
				f.add(setting{unquote(v), file.Path, n})
			}
			return
		}
		f.fault(file.Path, n, "sources is a list, a line each with a dash")
	})
}
