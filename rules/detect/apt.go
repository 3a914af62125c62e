package detect

import "strings"

// apt: sources.list(5), in both formats.
var apt = Manager{
	Name:    "apt",
	Files:   []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"},
	Setting: "deb https://… SUITE COMPONENT in /etc/apt/sources.list",
	parse:   parseApt,
}

func parseApt(f *finder) {
	for _, file := range f.Files {
		if strings.HasSuffix(file.Path, ".sources") {
			f.deb822(file)
			continue
		}
		f.lines(file, func(n int, line string) {
			text, _, _ := strings.Cut(line, "#")
			fields := strings.Fields(text)
			if len(fields) == 0 {
				return
			}
			if fields[0] != "deb" && fields[0] != "deb-src" {
				f.fault(file.Path, n, "a line begins with deb or deb-src")
				return
			}
			// Options in brackets may hold blanks.
			for i := 1; i < len(fields); i++ {
				if i == 1 && strings.HasPrefix(fields[i], "[") {
					for i < len(fields) && !strings.HasSuffix(fields[i], "]") {
						i++
					}
					continue
				}
				f.aptURI(setting{fields[i], file.Path, n})
				return
			}
			f.fault(file.Path, n, "no address")
		})
	}
}

// aptURI takes an address; what lies on the machine needs no way out.
func (f *finder) aptURI(s setting) {
	scheme, _, _ := strings.Cut(s.value, ":")
	switch scheme {
	case "file", "copy", "cdrom":
	default:
		f.add(s)
	}
}

// deb822 reads stanzas of fields; a field goes on in indented lines.
func (f *finder) deb822(file File) {
	var uris []setting
	field, enabled := "", true
	flush := func() {
		for _, s := range uris {
			if enabled {
				f.aptURI(s)
			}
		}
		uris, field, enabled = nil, "", true
	}
	n := 0
	for line := range strings.Lines(string(file.Data)) {
		n++
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "":
			flush()
			continue
		case line[0] == '#':
			continue
		case line[0] != ' ' && line[0] != '\t':
			var ok bool
			if field, line, ok = strings.Cut(line, ":"); !ok {
				f.fault(file.Path, n, "not a field with a value")
				continue
			}
		}
		switch {
		case strings.EqualFold(field, "Enabled"):
			enabled = !strings.EqualFold(strings.TrimSpace(line), "no") && !strings.EqualFold(strings.TrimSpace(line), "false")
		case strings.EqualFold(field, "URIs"):
			for v := range strings.FieldsSeq(line) {
				uris = append(uris, setting{v, file.Path, n})
			}
		}
	}
	flush()
}
