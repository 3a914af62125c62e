package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"

	"sallyport/audit"
	"sallyport/audit/capture"
	"sallyport/audit/query"
	"sallyport/broker/scrub"
	"sallyport/proxy"
	"sallyport/rules"
	"sallyport/rules/gate"
	"sallyport/rules/plural"
	"sallyport/rules/policyfile"
)

// openBodies makes the store of what rules say to log of bodies; nil without a
// recipient, and then such rules are not put in force.
func (g *gateway) openBodies(c policyfile.Capture) (err error) {
	if c.Recipient == "" {
		return nil
	}
	g.bodies, err = capture.New(capture.Config{
		Dir: g.inst.bodies(), Recipient: c.Recipient, Size: c.Size, Headers: c.Headers, Fields: c.Fields,
		Hider: g.broker.Hider, Decode: scrub.Decode,
	})
	return err
}

// mayCapture refuses a policy that asks for bodies which nobody could read.
func (g *gateway) mayCapture(p *rules.Policy) error {
	if rule, asks := p.Captures(); asks && g.bodies == nil {
		return fmt.Errorf("rule %q says to log bodies, and there is no recipient to encrypt them to: "+
			"sallyport up --capture-recipient age1... (age-keygen makes one), or log: metadata in the rule", rule)
	}
	return nil
}

// keepBodies takes copies of an exchange, of the request alone or of both.
func (g *gateway) keepBodies(p gate.Pass, r *http.Request) proxy.Keeper {
	if g.bodies == nil {
		return nil
	}
	cell := p.Identity().Cell
	k := &keptExchange{store: g.bodies, cell: cell, both: p.Decision().Log == rules.LogRequestResponse}
	k.request = g.bodies.Message(cell, fmt.Sprintf("%s %s %s", r.Method, r.URL.RequestURI(), r.Proto), r.Header)
	return k
}

// keptExchange implements [proxy.Keeper].
type keptExchange struct {
	store             *capture.Store
	cell              string
	both              bool
	request, response *capture.Message
}

func (k *keptExchange) Request(p []byte) { _, _ = k.request.Write(p) } // it never fails

func (k *keptExchange) Answer(status int, head http.Header) {
	if k.both {
		k.response = k.store.Message(k.cell, fmt.Sprintf("HTTP %d %s", status, http.StatusText(status)), head)
	}
}

func (k *keptExchange) Body(p []byte) {
	if k.response != nil {
		_, _ = k.response.Write(p) // it never fails
	}
}

// keptData is what the data of a done record says about bodies.
type keptData struct {
	Request  *capture.Ref `json:"request_body,omitempty"`
	Response *capture.Ref `json:"response_body,omitempty"`
}

func (k *keptExchange) Done() json.RawMessage {
	request := k.request.Finish()
	data := keptData{Request: &request}
	if k.response != nil {
		response := k.response.Finish()
		data.Response = &response
	}
	out, err := json.Marshal(data)
	if err != nil {
		return nil // it is numbers and text
	}
	return out
}

// pruneBodies removes bodies with the records that name them, also where none are
// kept any more.
func (g *gateway) pruneBodies(keep time.Duration) error {
	if keep <= 0 {
		return nil
	}
	return capture.Prune(g.inst.bodies(), time.Now().Add(-keep))
}

// pruning does so every hour.
func (g *gateway) pruning(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := g.pruneBodies(g.keepFor); err != nil {
			g.log.Error("removing old bodies", "cause", err)
		}
		wait(ctx, time.Hour)
	}
	return ctx.Err()
}

func newAuditBody() *cobra.Command {
	var identity, dir string
	var response bool
	c := &cobra.Command{
		Use:   "body ID --identity FILE",
		Short: "Print what was kept of a request, or of its answer",
		Long: `Body prints what was kept of a request because its rule says log: request or request_response:
its head and body, as far as they were kept, with secrets, placeholders and authenticating
headers left out. ID is that of the request, which the sandbox was told, or of its outcome. What
is kept is encrypted; FILE holds the age identity of the recipient. The file is compared with the
digest in the record. It is the sandbox's text, and printed as it is, but with what a terminal
could obey as visible escapes where the output is one.
Exit codes: 0 printed; 1 it cannot be read; 2 usage, or nothing was kept of it.`,
		Example: `  sallyport audit body 01JJX0000000000000000000F0 --identity ./reviewer.key
  sallyport audit body 01JJX0000000000000000000F0 --identity ./reviewer.key --response | less
  sallyport audit body 01JJX0000000000000000000F0 -o json`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			asJSON, err := outputJSON(c)
			if err != nil {
				return err
			}
			log, inst, err := auditDirOf(c)
			if err != nil {
				return err
			}
			if dir == "" {
				dir = keptNear(c, inst, "bodies")
			}
			data, err := keptOf(c, log, query.Spell("id", args[0]))
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(c.OutOrStdout(), data)
			}
			return printBody(c, dir, data, identity, response)
		},
	}
	c.Flags().StringVar(&identity, "identity", "", "file with the age identity of the recipient")
	c.Flags().StringVar(&dir, "bodies", "", "directory of what was kept; default: bodies in or beside --dir, or the instance's")
	c.Flags().BoolVar(&response, "response", false, "the answer, not the request")
	addOutput(c)
	return c
}

// keptOf returns what the outcome of a request says about bodies.
func keptOf(c *cobra.Command, log, id string) (keptData, error) {
	var data keptData
	for _, field := range []string{"ref", "id"} {
		for r, err := range orInterrupted(recordsOf(c, log, query.Where(field, id), nil)) {
			if _, bad := errors.AsType[*query.LineError](err); bad {
				continue
			}
			if err != nil {
				return data, err
			}
			if r.Kind == audit.Done {
				return readKept(&r)
			}
		}
	}
	err := fmt.Errorf("no request %s that was carried is in the log", id)
	begin, stopped := beginning(c, log, "id", id)
	switch {
	case stopped != nil:
		return data, stopped
	case begin == id:
		return data, usage(hint(err, "sallyport audit show %s", id))
	case begin != "":
		return data, usage(hint(err, "an id has to be whole here: %s %s --identity FILE", c.CommandPath(), query.Printable(begin)))
	}
	return data, usage(hint(err, "sallyport audit query kind=done"))
}

func readKept(r *audit.Record) (keptData, error) {
	var data keptData
	if len(r.Data) > 0 {
		if err := json.Unmarshal(r.Data, &data); err != nil {
			return data, fmt.Errorf("reading record %s: %w", r.ID, err)
		}
	}
	if data.Request == nil {
		return data, usage(hint(fmt.Errorf("nothing was kept of request %s", r.Ref), "log: request in rule %q keeps the next ones", r.Rule))
	}
	return data, nil
}

func printBody(c *cobra.Command, dir string, data keptData, identity string, response bool) error {
	ref, what := data.Request, "the request"
	if response {
		ref, what = data.Response, "the answer"
	}
	switch {
	case ref == nil:
		return usage(hint(fmt.Errorf("nothing was kept of %s", what), "log: request_response in the rule keeps the next ones"))
	case ref.Error != "":
		return fmt.Errorf("%s could not be kept: %s", what, ref.Error)
	case identity == "":
		return usage(hint(errors.New("--identity is required"), "it is the file that age-keygen wrote for the recipient"))
	}
	who, err := readIdentities(identity)
	if err != nil {
		return err
	}
	text, err := capture.Open(dir, ref.SHA256, who...)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return hint(err, "was it removed with old records? --bodies DIR names a copy")
	case errors.As(err, new(*age.NoIdentityMatchError)):
		return hint(err, "it was encrypted to the recipient of that time; --identity names that one's file")
	case errors.Is(err, fs.ErrPermission):
		return hint(err, "bodies are for root and the group %s", auditGroup)
	case err != nil:
		return err
	}
	if ref.Cut {
		fmt.Fprintf(c.ErrOrStderr(), "sallyport: cut: %s of the body went through, and %d are kept\n", plural.Count(ref.Bytes, "octet"), ref.Kept)
	}
	return writeBody(c.OutOrStdout(), text)
}

// writeBody writes a message as it is, but nothing that a terminal could obey to one.
func writeBody(w io.Writer, text []byte) error {
	if onTerminal(w) {
		text = []byte(shown(string(text)))
	}
	_, err := w.Write(text)
	return err
}

func readIdentities(file string) ([]age.Identity, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, usage(fmt.Errorf("reading the identity: %w", err))
	}
	defer f.Close()
	who, err := age.ParseIdentities(f)
	if err != nil {
		return nil, usage(hint(fmt.Errorf("reading the identity in %s: %w", file, err), "it is the file that age-keygen wrote for the recipient"))
	}
	return who, nil
}
