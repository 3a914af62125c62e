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

// settingsXML follows a settings.xml: which element a text stands in, and what the
// server that is being read has so far.
type settingsXML struct {
	*finder
	file    File
	path    []string
	url     setting
	blocked bool // a mirror that is there to block
}

func (f *finder) mavenSettings(file File) {
	x := &settingsXML{finder: f, file: file}
	d := xml.NewDecoder(bytes.NewReader(file.Data))
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
			x.path = append(x.path, t.Name.Local)
			if mavenHolders[t.Name.Local] {
				x.url, x.blocked = setting{}, false
			}
		case xml.CharData:
			x.text(strings.TrimSpace(string(t)), line)
		case xml.EndElement:
			x.path = x.path[:len(x.path)-1]
			if mavenHolders[t.Name.Local] {
				x.server()
			}
		}
	}
}

func (x *settingsXML) text(s string, line int) {
	if len(x.path) < 2 || !mavenHolders[x.path[len(x.path)-2]] {
		return
	}
	switch x.path[len(x.path)-1] {
	case "url":
		x.url = setting{x.url.value + s, x.file.Path, line}
	case "blocked":
		x.blocked = s == "true"
	}
}

// server takes the server whose element has ended.
func (x *settingsXML) server() {
	switch {
	case x.url.value == "" || x.blocked || strings.HasPrefix(x.url.value, "file:"):
	case strings.Contains(x.url.value, "${"):
		x.fault(x.url.file, x.url.line, "the address holds a property; write the address itself")
	default:
		x.add(x.url)
	}
}
