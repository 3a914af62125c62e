package detect

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
)

// maven: mirrors and repositories of settings.xml (Maven Settings Reference).
var maven = Manager{
	Name:    "maven",
	Files:   []string{"/usr/share/maven/conf/settings.xml", "/etc/maven/settings.xml", "/opt/maven/conf/settings.xml", "~/.m2/settings.xml"},
	Setting: "<mirrors><mirror><id>m</id><mirrorOf>*</mirrorOf><url>https://…</url></mirror></mirrors> in ~/.m2/settings.xml",
	parse: func(f *finder) {
		for _, file := range f.Files {
			f.mavenSettings(file)
		}
	},
}

// mavenHolders are the elements whose url is a server.
var mavenHolders = map[string]bool{"mirror": true, "repository": true, "pluginRepository": true}

// mavenSettings reads a file as a stream: what matters is which element a url
// stands in, and whether a mirror is there to block.
func (f *finder) mavenSettings(file File) {
	d := xml.NewDecoder(bytes.NewReader(file.Data))
	var path []string
	var url setting
	blocked := false
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		line, _ := d.InputPos()
		if err != nil {
			f.fault(file.Path, line, "not XML")
			return
		}
		switch t := t.(type) {
		case xml.StartElement:
			path = append(path, t.Name.Local)
			if mavenHolders[t.Name.Local] {
				url, blocked = setting{}, false
			}
		case xml.CharData:
			if len(path) < 2 || !mavenHolders[path[len(path)-2]] {
				continue
			}
			switch text := strings.TrimSpace(string(t)); path[len(path)-1] {
			case "url":
				url = setting{url.value + text, file.Path, line}
			case "blocked":
				blocked = text == "true"
			}
		case xml.EndElement:
			path = path[:len(path)-1]
			if mavenHolders[t.Name.Local] && url.value != "" && !blocked && !strings.HasPrefix(url.value, "file:") {
				f.mavenURL(url)
			}
		}
	}
}

func (f *finder) mavenURL(s setting) {
	if strings.Contains(s.value, "${") {
		f.fault(s.file, s.line, "the address holds a property; write the address itself")
		return
	}
	f.add(s)
}
