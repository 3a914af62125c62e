package dns

import (
	"context"
	"net/netip"
)

// HandleLong answers a message the long way, whatever it is.
func (s *Server) HandleLong(ctx context.Context, raw []byte, client netip.AddrPort, buf []byte) []byte {
	cell, _ := s.cfg.CellOf(client.Addr())
	return s.handleAny(ctx, &query{cell: cell, client: client, udp: true}, raw, buf)
}
