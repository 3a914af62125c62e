package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sallyport/control"
	"sallyport/launcher"
	"sallyport/rules/detect"
	"sallyport/rules/policyfile"
	"sallyport/rules/target"
)

const detectRootUsage = "directory with the files of an image, in which servers of package managers are detected first"

// configPlace is somewhere that package managers are configured. What it holds may
// be hostile: an image's links are followed inside it, and nothing but regular
// files of a bounded size is read.
type configPlace struct {
	name  string                                 // goes before the places of what is found
	files func(pattern string) ([]string, error) // that are there, sorted; an absolute path or pattern
	read  func(path string) ([]byte, error)
	env   map[string]string
	home  string // "" for none
	// more returns variables that count where env has none of the name; nil for none.
	more func() ([]string, error)
}

// detector finds the servers of package managers in the first place that
// configures them, and remembers.
type detector struct {
	places []configPlace
	found  map[string][]detect.Server
}

// newDetector looks into a directory that stands for the image, if one is named,
// and then at this machine.
func newDetector(root string) (*detector, error) {
	d := &detector{found: map[string][]detect.Server{}}
	if root != "" {
		p, err := rootPlace(root)
		if err != nil {
			return nil, usage(fmt.Errorf("detect-root: %w", err))
		}
		d.places = append(d.places, p)
	}
	d.places = append(d.places, hostPlace())
	return d, nil
}

// newRunDetector looks into the image of a run, or a directory that stands for it,
// with the variables that the run is given (NAME=value), and then at this machine.
// read is called only where a policy asks for a manager.
func newRunDetector(root string, given []string, read imageReader) (*detector, error) {
	d, err := newDetector(root)
	if err != nil {
		return nil, err
	}
	if root == "" {
		d.places = slices.Insert(d.places, 0, imagePlace(read, given))
	}
	p := &d.places[0]
	p.env = environ(given)
	p.home = p.env["HOME"]
	return d, nil
}

// imageReader returns the files of the image of a run that patterns match.
type imageReader func(patterns []string) (*launcher.ImageFiles, error)

// imagePlace is an image that is asked for its files: once, for those of every
// manager, so that the answer can be kept for all of them.
func imagePlace(read imageReader, given []string) configPlace {
	home := environ(given)["HOME"]
	all := sync.OnceValues(func() (*launcher.ImageFiles, error) {
		var patterns []string
		for _, name := range detect.Names() {
			m, _ := detect.Lookup(name)
			for _, f := range m.Files {
				if rest, inHome := strings.CutPrefix(f, "~"); !inHome {
					patterns = append(patterns, f)
				} else if home != "" {
					patterns = append(patterns, home+rest)
				}
			}
		}
		slices.Sort(patterns)
		return read(slices.Compact(patterns))
	})
	return configPlace{
		name: "image",
		more: func() ([]string, error) {
			found, err := all()
			if err != nil {
				return nil, err
			}
			return found.Env, nil
		},
		files: func(pattern string) (out []string, err error) {
			found, err := all()
			if err != nil {
				return nil, err
			}
			for name := range found.Files {
				if ok, _ := path.Match(pattern, name); ok {
					out = append(out, name)
				}
			}
			slices.Sort(out)
			return out, nil
		},
		read: func(name string) ([]byte, error) {
			found, err := all()
			if err != nil {
				return nil, err
			}
			return found.Files[name], nil
		},
	}
}

func environ(list []string) map[string]string {
	env := map[string]string{}
	for _, v := range list {
		if name, value, ok := strings.Cut(v, "="); ok {
			env[name] = value
		}
	}
	return env
}

// hostPlace is this machine, as whoever asked for the run has it.
func hostPlace() configPlace {
	home, _ := os.UserHomeDir() // without one, only the machine's own files count
	if sudo := os.Getenv("SUDO_USER"); sudo != "" {
		if u, err := user.Lookup(sudo); err == nil {
			home = u.HomeDir
		}
	}
	return configPlace{
		name: "host", env: environ(os.Environ()), home: home, read: readFile,
		files: func(pattern string) ([]string, error) { return filepath.Glob(pattern) },
	}
}

// rootPlace is a directory that stands for the root of a file system.
func rootPlace(dir string) (configPlace, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return configPlace{}, err
	}
	if !info.IsDir() {
		return configPlace{}, fmt.Errorf("%s is not a directory", dir)
	}
	in := func(f func(*os.Root) error) error {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		return errors.Join(f(root), root.Close())
	}
	return configPlace{
		name: "image",
		files: func(pattern string) (out []string, err error) {
			err = in(func(root *os.Root) error {
				at, err := resolveIn(root, path.Dir(pattern))
				if err != nil {
					return ignoreMissing(err)
				}
				names, err := fs.ReadDir(root.FS(), at)
				for _, e := range names {
					if ok, _ := path.Match(path.Base(pattern), e.Name()); ok {
						out = append(out, path.Join(path.Dir(pattern), e.Name()))
					}
				}
				return ignoreMissing(err)
			})
			return out, err
		},
		read: func(name string) (data []byte, err error) {
			err = in(func(root *os.Root) error {
				data, err = readIn(root, name)
				return err
			})
			return data, err
		},
	}, nil
}

// resolveIn follows the links of an absolute path inside a root, as a process whose
// root it is would, and returns what it leads to, from the root.
func resolveIn(root *os.Root, name string) (string, error) {
	links := 0
	return walkLinks(".", name, func(p string) (string, error) {
		info, err := root.Lstat(p)
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return "", err
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: name, Err: unix.ELOOP}
		}
		return root.Readlink(p)
	})
}

func readIn(root *os.Root, name string) ([]byte, error) {
	at, err := resolveIn(root, name)
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	return io.ReadAll(io.LimitReader(f, detect.MaxFile+1)) // one more is told by Find
}

// config reads what a place has of a manager's configuration.
func (p *configPlace) config(m detect.Manager) (detect.Config, error) {
	c := detect.Config{Env: map[string]string{}}
	env := maps.Clone(p.env)
	if p.more != nil {
		list, err := p.more()
		if err != nil {
			return c, err
		}
		env = environ(list)
		maps.Copy(env, p.env)
	}
	for name, value := range env {
		if m.Counts(name) {
			c.Env[name] = value
		}
	}
	for _, pattern := range m.Files {
		if rest, inHome := strings.CutPrefix(pattern, "~"); inHome {
			if p.home == "" {
				continue
			}
			pattern = p.home + rest
		}
		names, err := p.files(pattern)
		if err != nil {
			return c, fmt.Errorf("%s:%s: %w", p.name, pattern, err)
		}
		for _, name := range names {
			data, err := p.read(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // a link that leads nowhere, or gone meanwhile
			}
			if err != nil {
				return c, fmt.Errorf("%s:%s: %w", p.name, name, err)
			}
			c.Files = append(c.Files, detect.File{Path: name, Data: data})
		}
	}
	return c, nil
}

// find implements [policyfile.Detector].
func (d *detector) find(manager string) ([]detect.Server, error) {
	if list := d.found[manager]; list != nil {
		return list, nil
	}
	m, ok := detect.Lookup(manager)
	if !ok {
		return nil, fmt.Errorf("there is no manager %q", manager)
	}
	var where []string
	for i := range d.places {
		p := &d.places[i]
		where = append(where, p.name)
		c, err := p.config(m)
		if err != nil {
			return nil, err
		}
		list, err := m.Find(c)
		if err != nil {
			return nil, errors.New(p.name + ":" + strings.ReplaceAll(err.Error(), "\n", "\n"+p.name+":"))
		}
		if len(list) == 0 {
			continue
		}
		for i := range list {
			list[i].Where = p.name + ":" + list[i].Where
		}
		d.found[manager] = list
		return list, nil
	}
	return nil, fmt.Errorf("nothing says which server it reads from (looked at: %s); write %s", strings.Join(where, ", "), m.Setting)
}

// detected returns everything that was found, to be kept with a run.
func (d *detector) detected() (out []control.Detected) {
	for _, manager := range slices.Sorted(maps.Keys(d.found)) {
		for _, s := range d.found[manager] {
			out = append(out, control.Detected{Manager: manager, Host: s.Endpoint.Host.String(), Port: s.Endpoint.Port, Where: s.Where})
		}
	}
	return out
}

// keptDetector finds what was found when a run began.
func keptDetector(kept []control.Detected) policyfile.Detector {
	return func(manager string) (list []detect.Server, err error) {
		for _, k := range kept {
			if k.Manager != manager {
				continue
			}
			h, err := target.ParseHost(k.Host)
			if err != nil {
				return nil, err
			}
			list = append(list, detect.Server{Endpoint: target.Endpoint{Host: h, Port: k.Port}, Where: k.Where})
		}
		if len(list) == 0 {
			return nil, errors.New("it was not detected when the run began: start a new run")
		}
		return list, nil
	}
}
