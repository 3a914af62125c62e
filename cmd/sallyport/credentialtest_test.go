package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/query"
	"sallyport/broker"
	"sallyport/control"
	"sallyport/rules"
	"sallyport/rules/gate"
)

// newStageAt is a stage whose credential goes to a server of this machine.
func newStageAt(t *testing.T, origin *httptest.Server) *stage {
	t.Helper()
	return newStageWith(t, func(st *stage) {
		ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: origin.Certificate().Raw})
		st.must(putFile(st.inst.run("upstream-ca.pem"), ca, 0))
		// Who names this machine's own address says that it is meant.
		st.must(putFile(st.inst.run("config.yaml"), []byte("apiVersion: sallyport/v1\nkind: Gateway\nhosts: {example.com: [127.0.0.1]}\n"), 0))
		_, port, err := net.SplitHostPort(origin.Listener.Addr().String())
		st.must(err)
		st.write("creds/api.yaml", strings.Replace(fmt.Sprintf(stageCredential, st.path("token")), "host: api.example.com, ports: [443]", "host: 127.0.0.1, ports: ["+port+"]", 1))
	})
}

// resolves has the credential's host be at an address.
func (st *stage) resolves(addr string) {
	st.t.Helper()
	st.must(putFile(st.inst.run("config.yaml"), []byte("apiVersion: sallyport/v1\nkind: Gateway\nhosts: {api.example.com: ["+addr+"]}\n"), 0))
}

// up has commands believe that the stage's supervisor runs, until down is called.
func (st *stage) up() (down func()) {
	st.t.Helper()
	lock, err := os.OpenFile(st.inst.run("supervisor.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	st.must(err)
	_, err = lock.WriteString("4242\n")
	st.must(err)
	st.must(unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	return func() { st.must(lock.Close()) }
}

// TestLiveTestFailsUnlessTheAnswerIsGood, as text and as JSON, which tells what the
// answer was either way.
func TestLiveTestFailsUnlessTheAnswerIsGood(t *testing.T) {
	asAlice(t)
	var status atomic.Int64
	origin := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
	defer origin.Close()
	st := newStageAt(t, origin)
	defer st.up()()
	for _, tt := range []struct{ status, code int }{{401, 1}, {302, 1}, {500, 1}, {200, 0}, {204, 0}} {
		for format, want := range map[string]string{"text": "answered", "json": `"status": ` + strconv.Itoa(tt.status)} {
			status.Store(int64(tt.status))
			var out, errs bytes.Buffer
			code := run(t.Context(), []string{"credential", "test", "api", "--live", "--instance", st.inst.name, "-o", format}, strings.NewReader(""), &out, &errs)
			said := tt.code == 0 && errs.Len() == 0 || strings.Contains(errs.String(), fmt.Sprintf("the answer was %d", tt.status)) && strings.Contains(errs.String(), st.inst.typed("audit show"))
			if code != tt.code || !said || !strings.Contains(out.String(), want) {
				t.Errorf("%d as %s: exit %d, want %d: %s%s", tt.status, format, code, tt.code, out.String(), errs.String())
			}
		}
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"credential", "usage", "api", "--instance", st.inst.name}, strings.NewReader(""), &out, &out); code != 0 || strings.Count(out.String(), "alice (test)") != 10 {
		t.Errorf("usage: exit %d: %s", code, out.String())
	}
}

// TestLiveTestGoesThroughTheGateway: one request, signed, recorded, scrubbed, and
// nothing left of the run that it was granted to.
func TestLiveTestGoesThroughTheGateway(t *testing.T) {
	const secret = "secret-token-0001" // as the stage has it
	var saw atomic.Pointer[http.Request]
	origin := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		saw.Store(r)
		if r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, "welcome")
	}))
	defer origin.Close()
	st := newStageAt(t, origin)
	var dry broker.Tested
	st.must(callBroker(t.Context(), st.inst, "/v1/credentials/test", broker.Named{Credential: "api"}, &dry))
	if saw.Load() != nil || dry.Method != "GET" || dry.Path != "/v1/x" {
		t.Errorf("the dry test: %+v, the origin saw %v", dry, saw.Load())
	}
	refusals := []struct {
		name string
		in   tryIn
		want rules.Reason
	}{
		{"a path that the endpoint does not allow", tryIn{Credential: "api", Method: "GET", Path: "/v2/x"}, rules.PathNotAllowed},
		{"another method", tryIn{Credential: "api", Method: "DELETE", Path: "/v1/x"}, rules.MethodNotAllowed},
		{"a host that is no endpoint", tryIn{Credential: "api", Method: "GET", Host: "evil.example", Path: "/v1/x"}, ""},
		{"a path that climbs", tryIn{Credential: "api", Method: "GET", Path: "/v1/../v2"}, rules.PathAmbiguous},
	}
	if _, err := prefixes([]string{"10.0.0.1/8"}); err == nil || !strings.Contains(err.Error(), "10.20.0.0/16") {
		t.Errorf("a range with bits beyond its length: %v", err)
	}
	for _, tt := range refusals {
		out, err := liveTest(t.Context(), st.inst, tt.in)
		refusal, ok := errors.AsType[*control.Error](err)
		if !ok || refusal.Reason != string(tt.want) || saw.Load() != nil {
			t.Errorf("%s: %+v, %v", tt.name, out, err)
		}
	}
	out, err := liveTest(t.Context(), st.inst, tryIn{Credential: "api", Method: "POST", Path: "/v1/x?page=2"})
	st.must(err)
	if r := saw.Load(); r == nil || r.Method != "POST" || r.RequestURI != "/v1/x?page=2" || out.Status != http.StatusOK || out.Received != int64(len("welcome")) {
		t.Errorf("twin: %+v, the origin saw %v", out, r)
	}
	var admitted, done bool
	for _, r := range st.records(audit.Admit) {
		admitted = admitted || r.ID == out.ID && r.Credential == "api" && r.Method == "POST" && strings.HasPrefix(r.Cell, "test-")
	}
	for _, r := range st.records(audit.Done) {
		done = done || r.Ref == out.ID && r.Status == http.StatusOK
	}
	used := false
	for _, r := range st.records(audit.Credential) {
		used = used || r.Ref == out.ID && r.Credential == "api" && r.Event == "use"
	}
	if !admitted || !done || !used {
		t.Errorf("the log has the request %v, its outcome %v, the use of the credential %v", admitted, done, used)
	}
	var list broker.Statuses
	st.must(callBroker(t.Context(), st.inst, "/v1/credentials", empty{}, &list))
	if len(list.Credentials) != 1 || len(list.Credentials[0].Cells) != 0 || list.Credentials[0].Uses != 1 {
		t.Errorf("afterwards: %+v", list.Credentials)
	}
	if strings.Contains(st.said.String(), secret) {
		t.Error("the log shows the secret")
	}
}

// TestRecordsOfALiveTestTellWhoAskedAndWhatForIt: who asked for it, that no policy stood
// over it, and no use where nothing was sent; audit why and an export make sense of it.
func TestRecordsOfALiveTestTellWhoAskedAndWhatForIt(t *testing.T) {
	asAlice(t)
	st := newStageWith(t, func(st *stage) { st.resolves("10.9.8.7") })
	defer st.up()()
	ask := func(code int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if got := run(t.Context(), append(args, "--instance", st.inst.name), strings.NewReader(""), &out, &out); got != code {
			t.Errorf("%v: exit %d, want %d: %s", args, got, code, out.String())
		}
		return out.String()
	}
	if said := ask(1, "credential", "test", "api", "--live"); !strings.Contains(said, "private_ip") {
		t.Fatal(said)
	}
	asked, admitted := st.records(audit.CredentialChange), st.records(audit.Admit)
	if len(asked) != 1 || len(admitted) != 1 {
		t.Fatalf("asked: %+v, admitted: %+v", asked, admitted)
	}
	if a := asked[0]; query.What(&a) != "tested api by alice" || a.Run != admitted[0].Run || a.Cell != admitted[0].Cell || a.Seq > admitted[0].Seq {
		t.Errorf("who asked: %+v, of %+v", a, admitted[0])
	}
	if used := st.records(audit.Credential); len(used) != 0 || admitted[0].Event != "" || admitted[0].Policy != "" {
		t.Errorf("nothing was sent: %+v, under policy %q", used, admitted[0].Policy)
	}
	if said := ask(0, "audit", "why", admitted[0].ID); !strings.Contains(said, "it was a test of the credential") || !strings.Contains(said, "private_ip") {
		t.Errorf("why: %s", said)
	}
	if said := ask(0, "audit", "export", "--format", "har"); !strings.Contains(said, `"https://api.example.com/v1/x"`) || strings.Contains(said, "http://") {
		t.Errorf("exported: %s", said)
	}
}

// TestAdmissionHasAnOutcomeAfterAPanic: whatever breaks in between.
func TestAdmissionHasAnOutcomeAfterAPanic(t *testing.T) {
	st := newStage(t)
	q, id, err := st.gateway.trial(tryIn{Cell: "test-a", Run: "run-a", Credential: "api", Method: "GET", Path: "/v1/x"})
	st.must(err)
	st.gateway.trials.Store("test-a", id)
	pass, err := st.gateway.gate.Admit(t.Context(), q)
	st.must(err)
	func() {
		defer func() {
			if v := recover(); v != "boom" {
				t.Errorf("recovered %v", v)
			}
		}()
		_, _ = carried(t.Context(), pass, func() (gate.Outcome, error) { panic("boom") })
	}()
	done := st.records(audit.Done)
	if len(done) != 1 || done[0].Ref != pass.ID() || done[0].Error != errPanicked.Error() {
		t.Errorf("records %+v", done)
	}
}
