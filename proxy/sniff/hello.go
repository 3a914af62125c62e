package sniff

import (
	"slices"

	"golang.org/x/crypto/cryptobyte"
)

const (
	recordHandshake = 0x16
	recordHeader    = 5
	maxRecord       = 1 << 14 // RFC 8446 section 5.1

	handshakeClientHello = 1
	handshakeHeader      = 4

	extServerName = 0
	extALPN       = 16
)

// clientHello reads a ClientHello, which may be spread over several records.
func clientHello(b []byte) Result {
	msg, kind := handshakeMessage(b)
	if kind != TLS {
		return Result{Kind: kind}
	}
	r := Result{Kind: TLS}
	if !r.parse(msg) {
		return Result{Kind: Opaque}
	}
	return r
}

// handshakeMessage joins the fragments of the first handshake message. The
// kind is TLS if it is whole.
func handshakeMessage(b []byte) (msg []byte, kind Kind) {
	want := handshakeHeader
	for first := true; ; first = false {
		if len(b) < recordHeader {
			return nil, startOfRecord(b)
		}
		size := int(b[3])<<8 | int(b[4])
		if startOfRecord(b) == Opaque || size == 0 || size > maxRecord {
			return nil, Opaque
		}
		end := min(recordHeader+size, len(b))
		fragment, whole := b[recordHeader:end], len(b) >= recordHeader+size
		b = b[end:]
		if first {
			msg = slices.Clip(fragment) // no copy for the usual single record
		} else {
			msg = append(msg, fragment...)
		}
		if len(msg) > 0 && msg[0] != handshakeClientHello {
			return nil, Opaque
		}
		if len(msg) >= handshakeHeader {
			want = handshakeHeader + (int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3]))
			if want > Max {
				return nil, Opaque
			}
		}
		switch {
		case len(msg) >= want && len(msg) >= handshakeHeader:
			return msg[handshakeHeader:want], TLS
		case !whole:
			return nil, Undecided
		}
	}
}

// startOfRecord judges the type and the major version, as far as they are there.
func startOfRecord(b []byte) Kind {
	if len(b) > 0 && b[0] != recordHandshake || len(b) > 1 && b[1] != 3 {
		return Opaque
	}
	return Undecided
}

// parse reads the body of a ClientHello (RFC 8446 section 4.1.2).
func (r *Result) parse(msg []byte) bool {
	s := cryptobyte.String(msg)
	var session, suites, compression, extensions cryptobyte.String
	if !s.Skip(2+32) || // version, random
		!s.ReadUint8LengthPrefixed(&session) || len(session) > 32 ||
		!s.ReadUint16LengthPrefixed(&suites) || len(suites)%2 != 0 ||
		!s.ReadUint8LengthPrefixed(&compression) {
		return false
	}
	if s.Empty() {
		return true // no extensions: TLS 1.2 and below
	}
	if !s.ReadUint16LengthPrefixed(&extensions) || !s.Empty() {
		return false
	}
	return r.extensions(extensions)
}

// extensions reads the two that matter, and refuses any that is given twice:
// it would have two readings.
func (r *Result) extensions(extensions cryptobyte.String) bool {
	seen := make(map[uint16]bool, 16)
	for !extensions.Empty() {
		var id uint16
		var data cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&data) || seen[id] {
			return false
		}
		seen[id] = true
		switch id {
		case extServerName:
			if !r.serverName(data) {
				return false
			}
		case extALPN:
			if !r.alpn(data) {
				return false
			}
		}
	}
	return true
}

// serverName reads the extension of RFC 6066 section 3: at most one host name,
// not empty, without a trailing dot.
func (r *Result) serverName(data cryptobyte.String) bool {
	var list cryptobyte.String
	if !data.ReadUint16LengthPrefixed(&list) || list.Empty() || !data.Empty() {
		return false
	}
	for !list.Empty() {
		var kind uint8
		var name cryptobyte.String
		if !list.ReadUint8(&kind) || !list.ReadUint16LengthPrefixed(&name) || name.Empty() {
			return false
		}
		if kind != 0 {
			continue
		}
		if r.ServerName != "" || name[len(name)-1] == '.' {
			return false
		}
		r.ServerName = string(name)
	}
	return true
}

// alpn reads the extension of RFC 7301 section 3.1.
func (r *Result) alpn(data cryptobyte.String) bool {
	var list cryptobyte.String
	if !data.ReadUint16LengthPrefixed(&list) || list.Empty() || !data.Empty() {
		return false
	}
	for !list.Empty() {
		var proto cryptobyte.String
		if !list.ReadUint8LengthPrefixed(&proto) || proto.Empty() {
			return false
		}
		r.ALPN = append(r.ALPN, string(proto))
	}
	return true
}
