package dns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"sync"

	"sallyport/rules/target"
)

// The file of a cell has one line for each name, "address name", in the order
// in which the addresses were given out. It is only ever appended to. A last
// line without its end was being written when the gateway stopped: it was
// never answered, so it is dropped. Anything else that is odd refuses the cell.

const (
	fileSuffix = ".names"
	maxFile    = 64 << 20
)

// cellNames is the table of one cell.
type cellNames struct {
	mu     sync.RWMutex // guards all below
	byName map[target.Name]netip.Addr
	byAddr map[netip.Addr]target.Name
	file   *os.File // nil until there is something to write
	size   int64    // of the whole lines
	broken error    // the file can no longer be trusted
}

func (c *cellNames) addr(name target.Name) (netip.Addr, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	a, ok := c.byName[name]
	return a, ok
}

func (c *cellNames) name(a netip.Addr) (target.Name, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	name, ok := c.byAddr[a]
	return name, ok
}

func (c *cellNames) len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.byName)
}

// assign gives name the next address and writes that down.
func (c *cellNames) assign(n *Names, cell string, name target.Name) (netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.byName[name]; ok {
		return a, nil
	}
	if c.broken != nil {
		return netip.Addr{}, c.broken
	}
	if len(c.byName) >= n.cfg.PerCell {
		return netip.Addr{}, ErrNoRoom
	}
	a := n.nth(len(c.byName))
	if err := c.writeLocked(n, cell, a.String()+" "+name.String()+"\n"); err != nil {
		return netip.Addr{}, fmt.Errorf("keeping the virtual address of %q: %w", name, err)
	}
	c.byName[name], c.byAddr[a] = a, name
	return a, nil
}

// writeLocked appends one line, whole or not at all.
func (c *cellNames) writeLocked(n *Names, cell, line string) error {
	if c.file == nil {
		file, err := fileName(cell)
		if err != nil {
			return err
		}
		f, err := n.dir.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		c.file = f
	}
	if _, err := c.file.WriteString(line); err != nil {
		if cut := c.file.Truncate(c.size); cut != nil {
			c.broken = errors.Join(err, cut)
		}
		return err
	}
	c.size += int64(len(line))
	return nil
}

// close makes c unusable for what still holds it.
func (c *cellNames) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.byName)
	clear(c.byAddr)
	c.broken = errors.New("the cell is gone")
	if c.file == nil {
		return nil
	}
	f := c.file
	c.file = nil
	return f.Close()
}

// load reads the file of a cell; there may be none.
func (n *Names) load(cell string) (*cellNames, error) {
	file, err := fileName(cell)
	if err != nil {
		return nil, err
	}
	c := &cellNames{byName: map[target.Name]netip.Addr{}, byAddr: map[netip.Addr]target.Name{}}
	f, err := n.dir.OpenFile(file, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the virtual addresses of cell %q: %w", cell, err)
	}
	if err := c.read(n, f); err != nil {
		return nil, fmt.Errorf("reading the virtual addresses of cell %q: %w", cell, errors.Join(err, f.Close()))
	}
	c.file = f
	return c, nil
}

func (c *cellNames) read(n *Names, f *os.File) error {
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return errors.New("the file is too large")
	}
	whole := data[:bytes.LastIndexByte(data, '\n')+1]
	for i, line := range bytes.Split(whole, []byte{'\n'}) {
		if len(line) == 0 && i == len(c.byName) {
			continue // what follows the last line
		}
		addr, text, _ := bytes.Cut(line, []byte{' '})
		name, err := target.ParseName(string(text))
		if err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
		if i >= n.most() {
			return errors.New("more names than the range has addresses")
		}
		if _, twice := c.byName[name]; twice || string(addr) != n.nth(i).String() || name.String() != string(text) {
			return fmt.Errorf("line %d is not what was written", i+1)
		}
		c.byName[name], c.byAddr[n.nth(i)] = n.nth(i), name
	}
	c.size = int64(len(whole))
	if len(whole) == len(data) {
		return nil
	}
	return f.Truncate(c.size)
}

// fileName returns the name of a cell's file. A cell that is not plain letters
// and digits has none: it cannot name a path.
func fileName(cell string) (string, error) {
	ok := cell != "" && len(cell) <= 64
	for i := range len(cell) {
		c := cell[i]
		ok = ok && ('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' && i > 0)
	}
	if !ok {
		return "", fmt.Errorf("%q is not a cell", cell)
	}
	return cell + fileSuffix, nil
}
