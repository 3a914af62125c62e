package policyfile

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"sallyport/rules"
	"sallyport/rules/target"
)

// Durability says when a record counts as written.
type Durability string

// The durabilities. DurableProcess, the default, survives the end of the
// process; DurableDisk that of the machine, at the price of a sync.
const (
	DurableProcess Durability = "process"
	DurableDisk    Durability = "disk"
)

// Gateway is the gateway's configuration file.
type Gateway struct {
	Name        string
	Owner       string
	Description string
	Digest      string
	// Hosts are upstream names that are not looked up, with their addresses.
	// They are vetted like those of an answer.
	Hosts map[target.Name][]netip.Addr
	// UpstreamCA are files with further certificate authorities for upstreams.
	UpstreamCA []string
	// Resolvers are the servers to ask; none means those of the system.
	Resolvers []Resolver
	// Proxy is the proxy that every upstream connection goes through, nil for none.
	Proxy       *UpstreamProxy
	Log         Log
	Credentials string // directory of credential files, "" for none
	// Metrics is where /metrics, /livez and /readyz are served, on the host;
	// invalid for nowhere.
	Metrics netip.AddrPort
	Bounds  Bounds
}

// Bounds are what one cell may have the gateway hold and do, whatever its policy
// says. 0 stands for the gateway's default.
type Bounds struct {
	Connections int // open at once
	Requests    int // under way at once
	RequestRate int // requests and streams that begin in a second
	Lifetime    int // seconds after which a connection is ended
}

// Resolver is a DNS server, asked over TLS where TLSName names its certificate.
type Resolver struct {
	Addr    netip.AddrPort
	TLSName string
}

// UpstreamProxy is an HTTP proxy; User is empty for one that wants no name.
type UpstreamProxy struct {
	Addr         netip.AddrPort
	User         string
	PasswordFile string // absolute path
}

// ParseGateway reads the gateway's configuration. The error is [Errors].
func ParseGateway(name string, data []byte) (*Gateway, error) {
	f, root := open(name, data, KindGateway)
	if root == nil {
		return nil, f.err()
	}
	g := &Gateway{Digest: Digest(data), Log: Log{Durability: DurableProcess}, Hosts: map[target.Name][]netip.Addr{}}
	skip := func(ast.Node) {} // checked by open
	f.mapping(root, "a gateway", []key{
		{name: "apiVersion", read: skip},
		{name: "kind", read: skip},
		{name: "metadata", read: f.metadata(&g.Name, &g.Owner, &g.Description)},
		{name: "hosts", read: func(n ast.Node) { f.hosts(n, g.Hosts) }},
		{name: "upstream_ca", read: f.items(func(n ast.Node) {
			before := len(f.errs)
			var p string
			if f.path(&p)(n); len(f.errs) == before {
				g.UpstreamCA = append(g.UpstreamCA, p)
			}
		})},
		{name: "resolvers", read: f.strs(func(n ast.Node, s string) {
			if r, ok := resolver(s); ok {
				g.Resolvers = append(g.Resolvers, r)
			} else {
				f.errorf(n, "%q is not the address of a resolver, such as 192.0.2.53, 192.0.2.53:53 or, over TLS, tls://192.0.2.53#dns.example", s)
			}
		})},
		{name: "upstream_proxy", read: f.upstreamProxy(&g.Proxy)},
		{name: "log", read: f.log(&g.Log)},
		{name: "credentials", read: f.path(&g.Credentials)},
		{name: "metrics", read: f.addrPort(&g.Metrics)},
		{name: "bounds", read: f.bounds(&g.Bounds)},
	})
	if err := f.err(); err != nil {
		return nil, err
	}
	return g, nil
}

// The greatest bounds that can be configured, and the longest life of a
// connection, in seconds.
const (
	maxBound    = 1_000_000
	maxLifetime = 30 * day
)

func (f *file) bounds(dst *Bounds) func(ast.Node) {
	return func(n ast.Node) {
		f.mapping(n, "bounds", []key{
			{name: "connections", read: f.number(&dst.Connections, "a number of connections", 1, maxBound)},
			{name: "requests", read: f.number(&dst.Requests, "a number of requests", 1, maxBound)},
			{name: "requests_per_second", read: f.number(&dst.RequestRate, "a number of requests", 1, maxBound)},
			{name: "lifetime", read: f.seconds(&dst.Lifetime, 60, maxLifetime)},
		})
	}
}

// addrPort reads an address and a port.
func (f *file) addrPort(dst *netip.AddrPort) func(ast.Node) {
	return func(n ast.Node) {
		var s string
		before := len(f.errs)
		if f.str(&s)(n); len(f.errs) > before {
			return
		}
		at, err := netip.ParseAddrPort(s)
		if err != nil || at.Port() == 0 || at.Addr().Zone() != "" {
			f.errorf(n, "%q is not an address and a port, such as 127.0.0.1:9464", s)
			return
		}
		*dst = at
	}
}

// hosts reads names with lists of addresses.
func (f *file) hosts(n ast.Node, dst map[target.Name][]netip.Addr) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		f.errorf(n, "hosts is %s; it has to be a mapping of names to lists of addresses", kindOf(n))
		return
	}
	for _, v := range m.Values {
		h, ok := f.host(v.Key, keyOf(v))
		if !ok {
			continue
		}
		name, isName := h.Host.Name()
		switch {
		case h.Wildcard || !isName:
			f.errorf(v.Key, "hosts are names; %q is none", keyOf(v))
			continue
		case rules.IsReserved(name):
			f.errorf(v.Key, "%s is reserved: the gateway answers it itself", rules.Reserved)
			continue
		case dst[name] != nil:
			f.errorf(v.Key, "%q stands twice in hosts", name)
			continue
		}
		dst[name] = []netip.Addr{}
		f.strs(func(n ast.Node, s string) {
			a, err := netip.ParseAddr(s)
			switch {
			case err != nil || a.Zone() != "" || a.Is4In6():
				f.errorf(n, "%q is not an address", s)
			case slices.Contains(dst[name], a):
				f.errorf(n, "%q stands twice", s)
			default:
				dst[name] = append(dst[name], a)
			}
		})(v.Value)
	}
}

// resolver reads ADDRESS, ADDRESS:PORT or tls://ADDRESS[:PORT]#NAME.
func resolver(s string) (Resolver, bool) {
	port := uint16(53)
	rest, secure := strings.CutPrefix(s, "tls://")
	var r Resolver
	if secure {
		port = 853 // RFC 7858 section 3.1
		addr, name, ok := strings.Cut(rest, "#")
		n, err := target.ParseName(name)
		if !ok || err != nil {
			return r, false
		}
		rest, r.TLSName = addr, n.String()
	}
	if a, err := netip.ParseAddr(strings.Trim(rest, "[]")); err == nil {
		r.Addr = netip.AddrPortFrom(a.Unmap(), port)
		return r, a.Zone() == ""
	}
	ap, err := netip.ParseAddrPort(rest)
	r.Addr = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	return r, err == nil && ap.Port() != 0 && ap.Addr().Zone() == ""
}

// upstreamProxy reads where the proxy is and who we are to it.
func (f *file) upstreamProxy(dst **UpstreamProxy) func(ast.Node) {
	return func(n ast.Node) {
		u := new(UpstreamProxy)
		before := len(f.errs)
		found := f.mapping(n, "upstream_proxy", []key{
			{name: "address", read: f.addrPort(&u.Addr), required: true},
			{name: "user", read: f.str(&u.User)},
			{name: "password_file", read: f.path(&u.PasswordFile)},
		})
		if len(f.errs) > before {
			return
		}
		switch {
		case (found["user"] == nil) != (found["password_file"] == nil):
			f.errorf(n, "user and password_file go together")
		case strings.Contains(u.User, ":"):
			f.errorf(found["user"], "a user has no colon in it (RFC 7617)")
		default:
			*dst = u
		}
	}
}
