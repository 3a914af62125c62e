package audit

import (
	"encoding/json"
	"time"
)

// Kind says what a record is about.
type Kind string

// The kinds of record of schema v1.
const (
	LogOpen    Kind = "log.open"
	LogClose   Kind = "log.close"
	LogPack    Kind = "log.pack"   // a segment that has ended was packed
	LogRetain  Kind = "log.retain" // old segments are removed
	PolicyLoad Kind = "policy.load"
	// PolicyRefuse says that a file was not put in force; Policy names what still is.
	PolicyRefuse Kind = "policy.refuse"
	// AccessAsked is a sandbox's request for what it was refused (Ref); AccessDecided
	// is what a person made of it.
	AccessAsked   Kind = "access.asked"
	AccessDecided Kind = "access.decided"
	CellUp        Kind = "cell.up"
	CellDown      Kind = "cell.down"
	RunStart      Kind = "run.start"
	RunEnd        Kind = "run.end"
	DNS           Kind = "dns"        // a query and its answer
	Admit         Kind = "admit"      // written before acting
	Refuse        Kind = "refuse"     // nothing was done
	Done          Kind = "done"       // what became of an admit; Ref names it
	Credential    Kind = "credential" // of a request; Event says what happened to it
	// CredentialChange and CARotate are what a person did: Event says what, Data who.
	CredentialChange Kind = "credential.change" //nolint:gosec // G101: the name of a kind
	CARotate         Kind = "ca.rotate"
	Bypass           Kind = "bypass" // packets that went for another way out
	Gap              Kind = "gap"    // records that are known to be missing
	Anchor           Kind = "anchor" // checkpoints do not reach their anchor, or do again
	Ship             Kind = "ship"   // records do not reach a collector, or do again
)

// Schema is the version of the record format.
const Schema = 1

// Record is one line of the log. Text that a sandbox controls is bounded and
// made printable by [Log.Append], never by its writer. No field may hold a
// secret, a placeholder, or a header that authenticates.
type Record struct {
	Schema int       `json:"v"`
	Seq    uint64    `json:"seq"`  // set by Append: 0, 1, 2 …
	Time   time.Time `json:"time"` // UTC; set by Append where zero
	ID     string    `json:"id"`   // ULID; set by Append where empty
	Kind   Kind      `json:"kind"`
	Ref    string    `json:"ref,omitempty"` // the record that this one completes

	Cell   string `json:"cell,omitempty"`
	Run    string `json:"run,omitempty"`
	Policy string `json:"policy,omitempty"` // digest

	Verdict    string `json:"verdict,omitempty"` // deny tunnel inspect
	Reason     string `json:"reason,omitempty"`
	WouldDeny  string `json:"would_deny,omitempty"` // let through by mode: observe; the reason it would have had
	Rule       string `json:"rule,omitempty"`
	Where      string `json:"where,omitempty"` // file:line of the rule
	Scope      string `json:"scope,omitempty"`
	Credential string `json:"credential,omitempty"` // its name
	// Event is what happened to the credential, or the certificate authority. In an
	// Admit it is use: the credential goes out with what is admitted.
	Event string `json:"event,omitempty"`

	Listener string `json:"listener,omitempty"` // transparent explicit dns
	Client   string `json:"client,omitempty"`   // source address:port inside the cell
	Question string `json:"question,omitempty"`
	Proto    string `json:"proto,omitempty"` // tls http opaque; h1 h2 for a request
	Host     string `json:"host,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Query    string `json:"query_hash,omitempty"` // keyed hash, set by the gate
	// Values are the keyed hashes of the query's values, with a blank between them.
	Values string `json:"query_values,omitempty"`
	QType  string `json:"qtype,omitempty"`
	Answer string `json:"answer,omitempty"` // DNS: what was answered; else how a refusal was told that had no status

	Addr     string `json:"addr,omitempty"` // dialled address:port
	Status   int    `json:"status,omitempty"`
	Sent     int64  `json:"sent,omitempty"`     // octets, sandbox to upstream
	Received int64  `json:"received,omitempty"` // octets, upstream to sandbox
	Micros   int64  `json:"us,omitempty"`       // duration in microseconds
	Error    string `json:"error,omitempty"`    // class, then detail for the reviewer

	// Cut names the fields that were longer than their bound.
	Cut []string `json:"cut,omitempty"`
	// Data is the manifest or result of a run, counters, and the like.
	Data json.RawMessage `json:"data,omitempty"`
}
