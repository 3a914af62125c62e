package detect

import "strings"

// apk: apk-repositories(5).
var apk = Manager{
	Name:    "apk",
	Files:   []string{"/etc/apk/repositories", "/etc/apk/repositories.d/*.list"},
	Setting: "a line https://… in /etc/apk/repositories",
	parse: func(f *finder) {
		for _, file := range f.Files {
			f.lines(file, func(n int, line string) {
				fields := strings.Fields(line)
				if strings.HasPrefix(fields[0], "#") {
					return
				}
				if strings.HasPrefix(fields[0], "@") && len(fields) > 1 { // a tag
					fields = fields[1:]
				}
				if v := fields[0]; !strings.HasPrefix(v, "/") {
					f.add(setting{v, file.Path, n})
				}
			})
		}
	},
}
