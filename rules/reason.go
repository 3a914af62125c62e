package rules

// Reason is why a request was decided as it was: a closed set, stable over
// versions. It is what a sandbox and a reviewer see; details are for the log.
type Reason string

// The reasons. docs/reasons.md explains each; a test keeps the two in step.
const (
	Allowed            Reason = "allowed"
	Learned            Reason = "learned" // let through by mode: learn
	NoPolicy           Reason = "no_policy"
	UnknownCell        Reason = "unknown_cell"
	HostNotAllowed     Reason = "host_not_allowed"
	AddressNotAllowed  Reason = "address_not_allowed" // a raw IP address that no rule names
	PortNotAllowed     Reason = "port_not_allowed"
	ProtocolNotAllowed Reason = "protocol_not_allowed"
	MethodNotAllowed   Reason = "method_not_allowed"
	PathNotAllowed     Reason = "path_not_allowed"
	PathAmbiguous      Reason = "path_ambiguous"
	QueryNotAllowed    Reason = "query_not_allowed"
	QueryAmbiguous     Reason = "query_ambiguous"
	HeaderNotAllowed   Reason = "header_not_allowed"
	DeniedByRule       Reason = "denied_by_rule"
	RuleExpired        Reason = "rule_expired"
	PrivateIP          Reason = "private_ip" // the resolved address is special-purpose and no rule opens it
	AuthorityMismatch  Reason = "authority_mismatch"
	TypeNotAllowed     Reason = "dns_type_not_allowed"
	BadRequest         Reason = "bad_request"
	Limit              Reason = "limit"
	BodyTooLarge       Reason = "body_too_large"
	HeadTooLarge       Reason = "head_too_large"
	PlaceholderLeak    Reason = "placeholder_leak"
	ForeignCredential  Reason = "foreign_credential"
	CredentialMismatch Reason = "credential_mismatch"    //nolint:gosec // a word, no secret: the broker's own lock refused
	CredentialRevoked  Reason = "credential_revoked"     //nolint:gosec // a word, no secret: root took it back
	CredentialNeedsTLS Reason = "credential_needs_tls"   //nolint:gosec // a word, no secret: never over plain HTTP
	CredentialUnavail  Reason = "credential_unavailable" //nolint:gosec // a word, no secret: the secret's source failed
	BrokerUnavailable  Reason = "broker_unavailable"
	AuditUnavailable   Reason = "audit_unavailable" // cannot be recorded, so not done
	ClientRejectedCA   Reason = "client_rejected_ca"
	NoRequest          Reason = "no_request"  // the stream ended before it asked for anything
	ClientGone         Reason = "client_gone" // nobody waited for the answer any more when it was to be admitted
)

// Reasons returns every reason, for the documentation and its test.
func Reasons() []Reason {
	return []Reason{
		Allowed, Learned, NoPolicy, UnknownCell, HostNotAllowed, AddressNotAllowed, PortNotAllowed,
		ProtocolNotAllowed, MethodNotAllowed, PathNotAllowed, PathAmbiguous, QueryNotAllowed,
		QueryAmbiguous, HeaderNotAllowed, DeniedByRule, RuleExpired,
		PrivateIP, AuthorityMismatch, TypeNotAllowed, BadRequest, Limit, BodyTooLarge, HeadTooLarge, PlaceholderLeak, ForeignCredential,
		CredentialMismatch, CredentialRevoked, CredentialNeedsTLS, CredentialUnavail, BrokerUnavailable, AuditUnavailable,
		ClientRejectedCA, NoRequest, ClientGone,
	}
}

// Askable reports a refusal that an approval can lift: of what no rule allows.
// What a rule denies, what a request carries, and what guards against abuse, none
// lifts.
func (r Reason) Askable() bool {
	switch r {
	case HostNotAllowed, PortNotAllowed, MethodNotAllowed, PathNotAllowed, QueryNotAllowed, HeaderNotAllowed, RuleExpired:
		return true
	default:
		return false
	}
}
