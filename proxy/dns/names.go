package dns

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"sync"

	"sallyport/rules/target"
)

// ErrNoRoom is the error of [Names.Assign] for a cell that has had as many
// names as it may.
var ErrNoRoom = errors.New("the cell has no room for another name")

// NamesConfig is what Names needs. Dir is required.
type NamesConfig struct {
	// Dir holds one file for each cell, so that a gateway which is started
	// again under running sandboxes still knows what it answered.
	Dir string
	// Range is what virtual addresses are taken from: 198.18.0.0/15, which is
	// for benchmarks (RFC 2544) and so never anybody's.
	Range netip.Prefix
	// PerCell bounds the names of one cell: 4096.
	PerCell int
}

// Names is the table of virtual addresses: one for each pair of cell and name,
// never given to another name while the cell lives. Two cells may have the
// same address for different names: an address means nothing without a cell.
// It is safe for use by many goroutines.
type Names struct {
	cfg NamesConfig
	dir *os.Root

	mu    sync.RWMutex // guards cells
	cells map[string]*cellNames
}

// NewNames returns the table whose files are in a directory that exists.
func NewNames(cfg NamesConfig) (*Names, error) {
	if cfg.Range == (netip.Prefix{}) {
		cfg.Range = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, 0, 0}), 15)
	}
	if cfg.PerCell == 0 {
		cfg.PerCell = 4096
	}
	if !cfg.Range.Addr().Is4() || cfg.Range != cfg.Range.Masked() || cfg.Range.Bits() < 8 || cfg.Range.Bits() > 24 {
		return nil, fmt.Errorf("dns: range %v is not an IPv4 network of /8 to /24", cfg.Range)
	}
	n := &Names{cfg: cfg, cells: map[string]*cellNames{}}
	if cfg.PerCell < 0 || cfg.PerCell > n.most() {
		return nil, fmt.Errorf("dns: %d names per cell do not fit into %v: at most %d", cfg.PerCell, cfg.Range, n.most())
	}
	dir, err := os.OpenRoot(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("opening the directory of virtual addresses: %w", err)
	}
	n.dir = dir
	return n, nil
}

// Close closes the files. They are read again by the next NewNames.
func (n *Names) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	errs := []error{n.dir.Close()}
	for _, c := range n.cells {
		errs = append(errs, c.close())
	}
	clear(n.cells)
	return errors.Join(errs...)
}

// Assign returns the virtual address of a name in a cell, a new one at its
// first asking, which is in the cell's file when Assign returns.
func (n *Names) Assign(cell string, name target.Name) (netip.Addr, error) {
	if name.IsZero() {
		return netip.Addr{}, errors.New("assigning a virtual address: no name")
	}
	c, err := n.cell(cell)
	if err != nil {
		return netip.Addr{}, err
	}
	if a, ok := c.addr(name); ok {
		return a, nil
	}
	return c.assign(n, cell, name)
}

// Lookup returns the name that a virtual address stands for in a cell.
func (n *Names) Lookup(cell string, addr netip.Addr) (target.Name, bool) {
	c, err := n.cell(cell)
	if err != nil {
		return target.Name{}, false
	}
	return c.name(addr.Unmap())
}

// Contains reports whether an address is in the range of virtual addresses.
func (n *Names) Contains(addr netip.Addr) bool { return n.cfg.Range.Contains(addr.Unmap()) }

// Room reports whether Assign would find or make an address for the name.
func (n *Names) Room(cell string, name target.Name) bool {
	c, err := n.cell(cell)
	if err != nil {
		return false
	}
	if _, ok := c.addr(name); ok {
		return true
	}
	return c.len() < n.cfg.PerCell
}

// Forget removes a cell and its file.
func (n *Names) Forget(cell string) error {
	file, err := fileName(cell)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.cells[cell]; ok {
		delete(n.cells, cell)
		err = c.close()
	}
	if rm := n.dir.Remove(file); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	if err != nil {
		return fmt.Errorf("forgetting the virtual addresses of cell %q: %w", cell, err)
	}
	return nil
}

// Prune forgets every cell that live does not report: the files of those that
// ended while no gateway ran.
func (n *Names) Prune(live func(cell string) bool) error {
	entries, err := fs.ReadDir(n.dir.FS(), ".")
	if err != nil {
		return fmt.Errorf("reading the directory of virtual addresses: %w", err)
	}
	var errs []error
	for _, e := range entries {
		cell, ok := strings.CutSuffix(e.Name(), fileSuffix)
		if ok && !live(cell) {
			errs = append(errs, n.Forget(cell))
		}
	}
	return errors.Join(errs...)
}

// cell returns the names of a cell, read from its file if there is one.
func (n *Names) cell(cell string) (*cellNames, error) {
	n.mu.RLock()
	c, ok := n.cells[cell]
	n.mu.RUnlock()
	if ok {
		return c, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c, ok := n.cells[cell]; ok {
		return c, nil
	}
	c, err := n.load(cell)
	if err != nil {
		return nil, err
	}
	n.cells[cell] = c
	return c, nil
}

// perBlock is how many addresses of a /24 are used: some clients take the
// first and the last of it for a network and its broadcast.
const perBlock = 254

// most returns how many virtual addresses there are.
func (n *Names) most() int { return perBlock << (24 - n.cfg.Range.Bits()) }

// nth returns the i-th virtual address.
func (n *Names) nth(i int) netip.Addr {
	b := n.cfg.Range.Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(i/perBlock)<<8 + 1 + uint32(i%perBlock)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}
