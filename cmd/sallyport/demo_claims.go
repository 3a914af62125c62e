package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"

	"sallyport/rules/plural"
	"sallyport/test/lab"
)

// facts are what the agent is told about its surroundings, so that it can try
// the very addresses at which something listens.
func (d *demo) facts(neighbour string) map[string]any {
	return map[string]any{
		"api": lab.APIName, "files": lab.FilesName, "forbidden": lab.ForbiddenName,
		"file_path": lab.HelloPath, "git_path": lab.GitPath,
		"raw_ip": lab.ForbiddenAddr.String(), "gateway": gatewayOf(neighbour),
		"neighbour": neighbour, "neighbour_ports": []int{22, 53, 80, 443, 3129, 5353, 8080, 8443, 9000},
		"host_addresses": hostAddresses, "host_ports": hostPorts(),
		"secret_shape": secretShape(d.lab.Token),
	}
}

// hostAddresses are the host's own in this namespace: what the lab listens on.
var hostAddresses = []netip.Addr{lab.APIAddr, lab.ForbiddenAddr, lab.InternalAddr, lab.MetadataAddr}

// gatewayOf returns the gateway address of the cell that an address is in: the
// first of its /28.
func gatewayOf(addr string) string {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return ""
	}
	return netip.PrefixFrom(a, 28).Masked().Addr().Next().String()
}

// hostPorts are those that something may listen on: all that are well known,
// the lab's and the gateway's own.
func hostPorts() []int {
	ports := []int{3128, 8080, 8443, 9000, 9443, 10000, 15001}
	for p := 1; p <= 1024; p++ {
		ports = append(ports, p)
	}
	return ports
}

// secretShape matches everything that looks like the lab's token, so that the
// agent can search for it without being told what it is.
func secretShape(token string) string {
	prefix := token[:strings.LastIndexAny(token, "_-")+1]
	return fmt.Sprintf("%s[A-Za-z0-9]{%d}", prefix, len(token)-len(prefix))
}

// checkLab compares what the servers saw with what was claimed.
func (d *demo) checkLab() {
	var charges, authentic int
	for _, v := range d.lab.API.Seen() {
		if v.Header.Get("Authorization") == "Bearer "+d.lab.Token {
			authentic++
		}
		if v.Method == "POST" && v.URI == "/v1/charges" {
			charges++
		}
	}
	all := len(d.lab.API.Seen())
	d.claim("the API saw the real token, every time", all > 0 && authentic == all, fmt.Sprintf("%d of %s", authentic, plural.Count(all, "request")))
	d.claim("the API saw the one charge", charges == 1, charges)
	for _, v := range d.lab.API.Seen() {
		if v.Method == "DELETE" || strings.HasPrefix(v.URI, "/v1/refunds") {
			d.claim("the API saw no refused request", false, v.Method+" "+v.URI)
		}
	}
	leaked := false
	for _, v := range d.lab.Files.Seen() {
		leaked = leaked || v.Header.Get("Authorization") != ""
	}
	d.claim("the files site saw no key and no placeholder", len(d.lab.Files.Seen()) > 0 && !leaked, plural.Count(len(d.lab.Files.Seen()), "request"))
	for _, s := range []*lab.Site{d.lab.Forbidden, d.lab.Metadata, d.lab.Internal} {
		err := s.Untouched()
		saw := "no connection, no datagram"
		if err != nil {
			saw = err.Error()
		}
		d.claim("nobody came to "+s.Name, err == nil, saw)
	}
	asked := len(d.lab.Resolver.Queries())
	d.claim("no DNS query left", asked == 0, plural.Count(asked, "query")+" at the resolver")
}

// checkRecords counts what the log has of the runs: one refusal for each port
// that was scanned, and none that was let through.
func (d *demo) checkRecords(ctx context.Context, work, scan *demoResult) error {
	want := len(hostAddresses) * (len(hostPorts()) - 1) // 53 is not among them
	refused, err := d.count(ctx, "run="+scan.Run, "kind=refuse")
	if err != nil {
		return err
	}
	admitted, err := d.count(ctx, "run="+scan.Run, "kind=admit")
	if err != nil {
		return err
	}
	d.claim("the log has a refusal for every port tried", refused >= want && admitted == 0, fmt.Sprintf("%d, and nothing admitted", refused))
	admits, err := d.count(ctx, "run="+work.Run, "kind=admit")
	if err != nil {
		return err
	}
	dones, err := d.count(ctx, "run="+work.Run, "kind=done")
	if err != nil {
		return err
	}
	d.claim("every admitted request has its outcome", admits == dones && admits > 0, fmt.Sprintf("%d and %d", admits, dones))
	return nil
}

// count asks the log how many records match.
func (d *demo) count(ctx context.Context, filter ...string) (int, error) {
	cmd, err := d.cmd(ctx, append([]string{"audit", "query", "-o", "json"}, filter...)...)
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = nil, nil // what it says is for the error; that nothing matches is an answer
	out, err := cmd.Output()
	return bytes.Count(out, []byte("\n")), err
}

func joinAddrs(addrs []netip.Addr) string {
	out := make([]string, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
