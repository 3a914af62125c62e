// Package detect reads, from the configuration of package managers, which servers
// they read from.
//
// It is given the bytes of files and the values of variables, and does no I/O. It
// trusts whoever configured the manager for the choice of its servers, and nothing
// else of what it reads: of an address it keeps host and port, never a user name, a
// password or a path, and it never repeats a value in an error. It knows no
// registry by name: a manager that is configured nowhere has no servers here
// (ADR-0011).
package detect

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"sallyport/rules/target"
)

// MaxFile bounds a file in octets, and MaxServers what one manager has.
const (
	MaxFile    = 1 << 20
	MaxServers = 64
)

// File is a file of a manager's configuration, as it was read.
type File struct {
	Path string
	Data []byte
}

// Config is what one place, such as an image, has of a manager's configuration.
// Files are in the order in which the manager reads them.
type Config struct {
	Files []File
	Env   map[string]string
}

// Server is a server that a manager reads from.
type Server struct {
	Endpoint target.Endpoint
	Where    string // file:line, or the name of a variable
}

// Manager is a package manager.
type Manager struct {
	Name string
	// Files are the absolute paths of its configuration, "~" for the home directory;
	// the last element may be a pattern of package path.
	Files []string
	// Vars are the variables that count; a star at the end stands for any rest.
	Vars []string
	// Setting says what to write where nothing is found.
	Setting string

	parse func(*finder)
}

// Lookup returns a manager by its name.
func Lookup(name string) (Manager, bool) {
	i := slices.IndexFunc(managers, func(m Manager) bool { return m.Name == name })
	if i < 0 {
		return Manager{}, false
	}
	return managers[i], true
}

// Names returns the names of all managers.
func Names() []string {
	out := make([]string, 0, len(managers))
	for _, m := range managers {
		out = append(out, m.Name)
	}
	return out
}

// Counts reports whether a variable counts for m.
func (m Manager) Counts(name string) bool {
	return slices.ContainsFunc(m.Vars, func(v string) bool {
		prefix, open := strings.CutSuffix(v, "*")
		return name == v || open && strings.HasPrefix(name, prefix)
	})
}

// Find returns the servers that c configures, each once, sorted by host and port;
// none if it configures nothing. The error lists everything that is wrong, each
// with its place.
func (m Manager) Find(c Config) ([]Server, error) {
	f := &finder{Config: c}
	for _, file := range c.Files {
		if len(file.Data) > MaxFile {
			f.fault(file.Path, 0, "longer than 1 MiB")
		}
	}
	if len(f.errs) == 0 {
		m.parse(f)
	}
	slices.SortStableFunc(f.found, func(a, b Server) int {
		return cmp.Or(strings.Compare(a.Endpoint.Host.String(), b.Endpoint.Host.String()), cmp.Compare(a.Endpoint.Port, b.Endpoint.Port))
	})
	f.found = slices.CompactFunc(f.found, func(a, b Server) bool { return a.Endpoint == b.Endpoint })
	if len(f.found) > MaxServers {
		f.errs = append(f.errs, fmt.Errorf("more than %d servers", MaxServers))
	}
	if err := errors.Join(f.errs...); err != nil {
		return nil, err
	}
	return f.found, nil
}

// finder collects what a manager's configuration says.
type finder struct {
	Config
	found []Server
	errs  []error
}

// fault is something wrong at a line of a file; 0 for the whole.
func (f *finder) fault(file string, line int, format string, args ...any) {
	f.errs = append(f.errs, fmt.Errorf("%s: %s", place(file, line), fmt.Sprintf(format, args...)))
}

func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// setting is a value and where it stands.
type setting struct {
	value, file string
	line        int
}

// add takes an address of a server.
func (f *finder) add(s setting) {
	u, err := url.Parse(strings.TrimSpace(s.value))
	// The error of Parse would repeat what may hold a password.
	switch {
	case err != nil || u.Host == "":
		f.fault(s.file, s.line, "not the address of a server, such as https://packages.example.com/")
		return
	case u.Scheme != "https" && u.Scheme != "http":
		f.fault(s.file, s.line, "the scheme is %q; only servers that are reached by https or http can be allowed", u.Scheme)
		return
	}
	port := uint16(443)
	if u.Scheme == "http" {
		port = 80
	}
	f.addHost(setting{u.Host, s.file, s.line}, port)
}

// addHost takes host or host:port.
func (f *finder) addHost(s setting, port uint16) {
	e, err := target.ParseAuthority(s.value, port)
	if err != nil {
		f.fault(s.file, s.line, "%v", err)
		return
	}
	f.found = append(f.found, Server{e, place(s.file, s.line)})
}

// env returns the value of the first of some variables that is there.
func (f *finder) env(names ...string) (setting, bool) {
	for _, name := range names {
		if v := f.Env[name]; strings.TrimSpace(v) != "" {
			return setting{v, name, 0}, true
		}
	}
	return setting{}, false
}

// envs returns the variables that begin and end so, sorted by name.
func (f *finder) envs(prefix, suffix string) (out []setting) {
	for name, v := range f.Env {
		if strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) && v != "" {
			out = append(out, setting{v, name, 0})
		}
	}
	slices.SortFunc(out, func(a, b setting) int { return strings.Compare(a.file, b.file) })
	return out
}

// lines calls read for every line of a file that is not blank, without its end.
func (f *finder) lines(file File, read func(n int, line string)) {
	n := 0
	for line := range strings.Lines(string(file.Data)) {
		n++
		if line = strings.TrimRight(line, " \t\r\n"); strings.TrimLeft(line, " \t") != "" {
			read(n, line)
		}
	}
}

// named returns the files whose last element matches a pattern.
func (f *finder) named(pattern string) (out []File) {
	for _, file := range f.Files {
		if ok, _ := path.Match(pattern, path.Base(file.Path)); ok {
			out = append(out, file)
		}
	}
	return out
}

// unquote takes a pair of quotes away.
func unquote(s string) string {
	s = strings.TrimSpace(s)
	if n := len(s); n > 1 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	return s
}

// isURL reports a value that is an address, and no path of a file system.
func isURL(s string) bool { return strings.Contains(s, "://") }

// managers are all that are known. Their order is that of messages.
var managers = []Manager{pip, npm, pnpm, yarn, golang, cargo, apt, apk, maven, gem}
