package detect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sallyport/rules/detect"
)

// servers writes what was found, for comparing.
func servers(list []detect.Server) (out []string) {
	for _, s := range list {
		out = append(out, fmt.Sprintf("%v %s", s.Endpoint, s.Where))
	}
	return out
}

func file(path, text string) detect.File { return detect.File{Path: path, Data: []byte(text)} }

func TestFind(t *testing.T) {
	const secret = "hunter2secret"
	for _, tt := range []struct {
		name, manager string
		files         []detect.File
		env           map[string]string
		want          []string
		err           string
	}{
		{
			"the index, and more", "pip",
			[]detect.File{file("/etc/pip.conf", "# ours\n[global]\nindex-url = https://user:"+secret+"@packages.example.com/simple\nextra_index_url:\n    https://more.example.com:8443/simple\n    http://plain.example.com/\ntimeout = 60\n")},
			nil,
			[]string{"more.example.com:8443 /etc/pip.conf:5", "packages.example.com:443 /etc/pip.conf:3", "plain.example.com:80 /etc/pip.conf:6"},
			"",
		},
		{
			"a later file", "pip",
			[]detect.File{file("/etc/pip.conf", "[global]\nindex-url=https://a.example.com/\nfind-links=https://links.example.com/ /srv/wheels\n"), file("/root/.pip/pip.conf", "[install]\nindex-url=https://b.example.com/\n")},
			nil,
			[]string{"b.example.com:443 /root/.pip/pip.conf:2", "links.example.com:443 /etc/pip.conf:3"},
			"",
		},
		{
			"a variable", "pip",
			[]detect.File{file("/etc/pip.conf", "[global]\nindex-url=https://a.example.com/\n")},
			map[string]string{"PIP_INDEX_URL": "https://v.example.com/simple"},
			[]string{"v.example.com:443 PIP_INDEX_URL"},
			"",
		},
		{"no index", "pip", []detect.File{file("/etc/pip.conf", "[global]\nindex-url=https://a.example.com/\nno-index=true\n")}, nil, nil, ""},
		{"not configured", "pip", []detect.File{file("/etc/pip.conf", "[global]\ntimeout = 60\n")}, nil, nil, ""},
		{"no address", "pip", []detect.File{file("/etc/pip.conf", "[global]\nindex-url = user:"+secret+"@x\n")}, nil, nil, "/etc/pip.conf:2: "},
		{"another scheme", "pip", []detect.File{file("/etc/pip.conf", "[global]\nindex-url = ftp://user:"+secret+"@x.example.com/\n")}, nil, nil, `the scheme is "ftp"`},
		{"no key", "pip", []detect.File{file("/etc/pip.conf", "[global]\nnonsense\n")}, nil, nil, "/etc/pip.conf:2: not a key"},
		{"a host that is none", "pip", []detect.File{file("/etc/pip.conf", "[global]\nindex-url = https://a_b..example.com/\n")}, nil, nil, "/etc/pip.conf:2: "},

		{
			"with a scope", "npm", []detect.File{
				file("/etc/npmrc", "registry=https://all.example.com/npm/\n"),
				file("/root/.npmrc", "; ours\nregistry = \"https://mine.example.com/\"\n@acme:registry=https://acme.example.com/npm/\n//mine.example.com/:_authToken="+secret+"\nalways-auth=true\n"),
			}, nil, []string{"acme.example.com:443 /root/.npmrc:3", "mine.example.com:443 /root/.npmrc:2"}, "",
		},
		{"a variable", "npm", []detect.File{file("/etc/npmrc", "registry=https://all.example.com/\n")}, map[string]string{"npm_config_registry": "http://v.example.com:4873"}, []string{"v.example.com:4873 npm_config_registry"}, ""},
		{"a variable inside", "npm", []detect.File{file("/etc/npmrc", "registry=https://${HOST}/\n")}, nil, nil, "/etc/npmrc:1: the address holds a variable"},
		{"its own variable", "pnpm", nil, map[string]string{"pnpm_config_registry": "https://p.example.com", "npm_config_registry": "https://n.example.com"}, []string{"p.example.com:443 pnpm_config_registry"}, ""},
		{"its own file", "pnpm", []detect.File{file("/root/.npmrc", "registry=https://n.example.com\n"), file("/root/.config/pnpm/rc", "registry=https://p.example.com\n")}, nil, []string{"p.example.com:443 /root/.config/pnpm/rc:1"}, ""},

		{"version 1", "yarn", []detect.File{file("/root/.npmrc", "registry=https://n.example.com\n"), file("/root/.yarnrc", "# yarn lockfile v1\nregistry \"https://y.example.com/\"\n\"@acme:registry\" \"https://acme.example.com/\"\n")}, nil, []string{"acme.example.com:443 /root/.yarnrc:3", "y.example.com:443 /root/.yarnrc:2"}, ""},
		{"version 4", "yarn", []detect.File{file("/root/.yarnrc.yml", "npmScopes:\n  acme:\n    npmRegistryServer: 'https://acme.example.com'\n    npmAuthToken: "+secret+"\nnpmRegistryServer: \"https://y.example.com\" # ours\n")}, nil, []string{"acme.example.com:443 /root/.yarnrc.yml:3", "y.example.com:443 /root/.yarnrc.yml:5"}, ""},
		{"npm's", "yarn", []detect.File{file("/root/.npmrc", "registry=https://n.example.com\n")}, nil, []string{"n.example.com:443 /root/.npmrc:1"}, ""},
		{"a variable", "yarn", []detect.File{file("/root/.npmrc", "registry=https://n.example.com\n")}, map[string]string{"YARN_NPM_REGISTRY_SERVER": "https://v.example.com"}, []string{"v.example.com:443 YARN_NPM_REGISTRY_SERVER"}, ""},

		{
			"a list", "go",
			[]detect.File{file("/usr/local/go/go.env", "# comment\nGOPROXY=https://tool.example.com,direct\nGOSUMDB=sums.example.com\n")},
			map[string]string{"GOPROXY": "https://user:" + secret + "@a.example.com|https://b.example.com/go,direct"},
			[]string{"a.example.com:443 GOPROXY", "b.example.com:443 GOPROXY", "sums.example.com:443 /usr/local/go/go.env:3"},
			"",
		},
		{"a key, and an address", "go", nil, map[string]string{"GOPROXY": "off", "GOSUMDB": "sums.example.com+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8 https://mirror.example.com/sumdb"}, []string{"mirror.example.com:443 GOSUMDB"}, ""},
		{"a key", "go", nil, map[string]string{"GOSUMDB": "sums.example.com+033de0ae+Ac4zctda"}, []string{"sums.example.com:443 GOSUMDB"}, ""},
		{"direct", "go", nil, map[string]string{"GOPROXY": "direct", "GOSUMDB": "off"}, nil, ""},

		{
			"sources and registries", "cargo",
			[]detect.File{file("/usr/local/cargo/config.toml", "[source.crates-io]\nreplace-with = \"mirror\"\n\n[source.\"mirror\"]\nregistry = \"sparse+https://m.example.com/index/\" # ours\n[registries]\nacme.index = 'sparse+https://acme.example.com/index/'\n[source.local]\nlocal-registry = \"/srv\"\n[net]\nretry = 2\n")},
			map[string]string{"CARGO_REGISTRIES_OTHER_INDEX": "sparse+https://o.example.com/", "CARGO_REGISTRIES_OTHER_TOKEN": secret},
			[]string{"acme.example.com:443 /usr/local/cargo/config.toml:7", "m.example.com:443 /usr/local/cargo/config.toml:5", "o.example.com:443 CARGO_REGISTRIES_OTHER_INDEX"},
			"",
		},
		{"an index in git", "cargo", []detect.File{file("/c.toml", "[registries.acme]\nindex = \"https://git.example.com/index\"\n")}, nil, nil, "/c.toml:2: an index in git"},
		{"a table on a line", "cargo", []detect.File{file("/c.toml", "[registries]\nacme = { index = \"sparse+https://a.example.com/\" }\n")}, nil, nil, "write it with a heading [registries.acme]"},
		{"text without an end", "cargo", []detect.File{file("/c.toml", "[registries.acme]\nindex = \"sparse+https://a\n")}, nil, nil, "does not end on its line"},

		{
			"lines", "apt",
			[]detect.File{file("/etc/apt/sources.list", "# deb http://off.example.com x main\ndeb [arch=amd64 signed-by=/usr/share/keyrings/a.gpg] http://deb.example.com/debian stable main # us\ndeb-src https://src.example.com/debian stable main\ndeb cdrom:[x]/ stable main\ndeb file:/srv/repo ./\n")},
			nil,
			[]string{"deb.example.com:80 /etc/apt/sources.list:2", "src.example.com:443 /etc/apt/sources.list:3"},
			"",
		},
		{
			"stanzas", "apt",
			[]detect.File{file("/etc/apt/sources.list.d/a.sources", "# ours\nTypes: deb\nURIs: http://one.example.com/debian\n https://two.example.com/debian\nSuites: stable\n\nTypes: deb\nEnabled: no\nURIs: http://off.example.com/\n\nEnabled: yes\nURIs: https://three.example.com/\n")},
			nil,
			[]string{"one.example.com:80 /etc/apt/sources.list.d/a.sources:3", "three.example.com:443 /etc/apt/sources.list.d/a.sources:12", "two.example.com:443 /etc/apt/sources.list.d/a.sources:4"},
			"",
		},
		{"a method of its own", "apt", []detect.File{file("/s.list", "deb tor+http://x.example.com/ s main\n")}, nil, nil, `the scheme is "tor+http"`},
		{"no line of it", "apt", []detect.File{file("/s.list", "rpm http://x.example.com/\n")}, nil, nil, "/s.list:1: a line begins with deb"},
		{"brackets without an end", "apt", []detect.File{file("/s.list", "deb [arch=x http://x.example.com/\n")}, nil, nil, "/s.list:1: no address"},

		{"repositories", "apk", []detect.File{file("/etc/apk/repositories", "#https://off.example.com/\n/media/cdrom/apks\nhttps://one.example.com/alpine/main\n@edge http://two.example.com/edge\n")}, nil, []string{"one.example.com:443 /etc/apk/repositories:3", "two.example.com:80 /etc/apk/repositories:4"}, ""},

		{
			"mirrors and repositories", "maven",
			[]detect.File{file("/etc/maven/settings.xml", `<settings><!-- <mirror><url>https://off.example.com</url></mirror> -->
<servers><server><id>m</id><password>`+secret+`</password></server></servers>
<mirrors>
<mirror><id>m</id><mirrorOf>*</mirrorOf>
<url>https://m.example.com/maven</url></mirror>
<mirror><id>block</id><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
</mirrors><proxies><proxy><url>https://proxy.example.com</url></proxy></proxies>
<profiles><profile><repositories><repository><url>https://r.example.com/</url></repository></repositories>
<pluginRepositories><pluginRepository><url>file:///srv</url></pluginRepository></pluginRepositories></profile></profiles></settings>`)},
			nil,
			[]string{"m.example.com:443 /etc/maven/settings.xml:5", "r.example.com:443 /etc/maven/settings.xml:8"},
			"",
		},
		{"no XML", "maven", []detect.File{file("/s.xml", "<settings>\n<mirrors></settings>")}, nil, nil, "/s.xml:2: not XML"},
		{"a property", "maven", []detect.File{file("/s.xml", "<settings><mirrors><mirror><url>https://${env.HOST}/</url></mirror></mirrors></settings>")}, nil, nil, "holds a property"},

		{
			"sources and mirrors", "gem",
			[]detect.File{
				file("/root/.gemrc", "---\n:backtrace: false\n:sources:\n- https://g.example.com/\n- \"http://h.example.com:8080\"\n:update_sources: true\n:other:\n- https://off.example.com\n"),
				file("/root/.bundle/config", "---\nBUNDLE_PATH: \"vendor\"\nBUNDLE_MIRROR__HTTPS://X__EXAMPLE/: \"https://b.example.com/\"\n"),
			},
			map[string]string{"BUNDLE_MIRROR__ALL": "https://all.example.com", "BUNDLE_MIRROR__ALL__FALLBACK_TIMEOUT": "true"},
			[]string{"all.example.com:443 BUNDLE_MIRROR__ALL", "b.example.com:443 /root/.bundle/config:3", "g.example.com:443 /root/.gemrc:4", "h.example.com:8080 /root/.gemrc:5"},
			"",
		},
		{"in brackets", "gem", []detect.File{file("/etc/gemrc", "sources: [\"https://g.example.com\", 'https://h.example.com']\n")}, nil, []string{"g.example.com:443 /etc/gemrc:1", "h.example.com:443 /etc/gemrc:1"}, ""},
		{"one word", "gem", []detect.File{file("/etc/gemrc", "sources: https://g.example.com\n")}, nil, nil, "/etc/gemrc:1: sources is a list"},
	} {
		t.Run(tt.manager+" "+tt.name, func(t *testing.T) {
			m, ok := detect.Lookup(tt.manager)
			if !ok {
				t.Fatal("no such manager")
			}
			got, err := m.Find(detect.Config{Files: tt.files, Env: tt.env})
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("Find = %v, want %q", err, tt.err)
			}
			if !slices.Equal(servers(got), tt.want) {
				t.Errorf("Find = %q, want %q", servers(got), tt.want)
			}
			if text := fmt.Sprint(servers(got), err); strings.Contains(text, secret) {
				t.Errorf("a secret is told: %s", text)
			}
		})
	}
}

// Every manager says where it is configured, and takes nothing from nothing.
func TestEveryManager(t *testing.T) {
	names := detect.Names()
	if want := []string{"pip", "npm", "pnpm", "yarn", "go", "cargo", "apt", "apk", "maven", "gem"}; !slices.Equal(names, want) {
		t.Errorf("Names = %q, want %q", names, want)
	}
	for _, name := range names {
		m, _ := detect.Lookup(name)
		if got, err := m.Find(detect.Config{}); len(got) != 0 || err != nil {
			t.Errorf("%s: out of nothing: %v, %v", name, got, err)
		}
		if len(m.Files) == 0 || !strings.Contains(m.Setting, "https://…") {
			t.Errorf("%s: files %q, setting %q", name, m.Files, m.Setting)
		}
		for _, f := range m.Files {
			if !strings.HasPrefix(f, "/") && !strings.HasPrefix(f, "~/") {
				t.Errorf("%s: %q is not from the root or the home", name, f)
			}
		}
		if _, err := m.Find(detect.Config{Files: []detect.File{{Path: "/x", Data: make([]byte, detect.MaxFile+1)}}}); err == nil {
			t.Errorf("%s: a file of more than 1 MiB is read", name)
		}
	}
	if _, ok := detect.Lookup("rpm"); ok {
		t.Error("a manager that is not there was found")
	}
	m, _ := detect.Lookup("cargo")
	if !m.Counts("CARGO_REGISTRIES_X_INDEX") || m.Counts("CARGO_HOME") {
		t.Error("cargo: the wrong variables count")
	}
	many := strings.Builder{}
	for i := range detect.MaxServers + 1 {
		fmt.Fprintf(&many, "https://n%d.example.com/\n", i)
	}
	m, _ = detect.Lookup("apk")
	if _, err := m.Find(detect.Config{Files: []detect.File{file("/r", many.String())}}); err == nil || !strings.Contains(err.Error(), "more than 64") {
		t.Errorf("many servers: %v", err)
	}
}

func FuzzFind(f *testing.F) {
	for _, seed := range []string{
		"[global]\nindex-url = https://a.example.com/\n", "registry=https://a.example.com\n", "deb [x] http://a.example.com s m\n",
		"URIs: http://a.example.com\n b\n\n", "[source.x]\nregistry = \"sparse+https://a.example.com\"\n", ":sources:\n- https://a.example.com\n",
		"<mirror><url>https://a.example.com</url></mirror>", "GOPROXY=https://a.example.com,direct\n", "[]\n=\n[",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range detect.Names() {
			m, _ := detect.Lookup(name)
			for _, path := range m.Files {
				got, err := m.Find(detect.Config{Files: []detect.File{file(path, text)}, Env: map[string]string{"GOPROXY": text, "GOSUMDB": text, "PIP_INDEX_URL": text}})
				if err != nil && len(got) > 0 {
					t.Errorf("%s: servers beside an error", name)
				}
				for _, s := range got {
					if s.Endpoint.Host.IsZero() || s.Endpoint.Port == 0 || s.Where == "" {
						t.Errorf("%s: %+v", name, s)
					}
				}
			}
		}
	})
}
