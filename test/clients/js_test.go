package clients_test

import (
	"slices"
	"strings"
	"testing"
)

// jsLibraries is where "deploy/setup.sh clients" keeps them.
const jsLibraries = "/var/lib/sallyport/js/node_modules"

// s3JS puts and gets objects as any program does that knows of no gateway.
const s3JS = `
const { S3Client, PutObjectCommand, GetObjectCommand, HeadObjectCommand, ListObjectsV2Command } = require("@aws-sdk/client-s3");
const { Readable } = require("stream");
const assert = require("assert");

const [bucket, text] = process.argv.slice(2);
const s3 = new S3Client({ region: "eu-west-1", maxAttempts: 1 });
const read = async (Key, more) => (await s3.send(new GetObjectCommand({ Bucket: bucket, Key, ...more }))).Body.transformToString();

(async () => {
  const Bucket = bucket, Key = "k/ü~x (1)*";
  await s3.send(new PutObjectCommand({ Bucket, Key, Body: text, Metadata: { a: "1" }, ContentType: "text/plain" }));
  assert.strictEqual(await read(Key), text);
  assert.strictEqual(await read(Key, { Range: "bytes=1-2" }), text.slice(1, 3));
  assert.strictEqual((await s3.send(new HeadObjectCommand({ Bucket, Key }))).ContentLength, text.length);
  assert.deepStrictEqual((await s3.send(new ListObjectsV2Command({ Bucket, Prefix: "k/" }))).Contents.map((o) => o.Key), [Key]);
  // A stream has no hash before it is sent: its checksum comes behind it, in a trailer.
  const pieces = Array.from({ length: 64 }, (_, i) => Buffer.alloc(16384, 65 + (i % 26)));
  await s3.send(new PutObjectCommand({ Bucket, Key: "stream", Body: Readable.from(pieces), ContentLength: 64 * 16384 }));
  assert.strictEqual(await read("stream"), Buffer.concat(pieces).toString());
  console.log("done");
})().catch((e) => { console.error(e.name, e.$metadata && e.$metadata.httpStatusCode, e.message); process.exit(1); });
`

// inCell runs s3JS in a cell that has no proxy in its environment.
func (g *gateway) inCell(before []string, args ...string) (string, error) {
	g.t.Helper()
	all := slices.Concat(before[1:], []string{"node", "-"}, args)
	return g.command(s3JS, before[0], all...)
}

// TestAWSSDKForJS: objects with and without a checksum behind them, by the transparent
// way, and what has to be refused.
func TestAWSSDKForJS(t *testing.T) {
	t.Run("signed anew", func(t *testing.T) {
		g, b := newAWS(t, awsToken)
		before := g.jsCell()
		if out, err := g.inCell(before, "box", "some text"); err != nil || strings.TrimSpace(out) != "done" {
			t.Fatalf("%v: %s, refusals %q", err, out, g.reasons())
		}
		if b.get("k/ü~x (1)*") != "some text" || len(b.get("stream")) != 64*16384 {
			t.Errorf("the bucket has %q, and a stream of %d octets", b.get("k/ü~x (1)*"), len(b.get("stream")))
		}
		if !g.onlyBy("transparent") {
			t.Error("a request came by another way than the transparent one")
		}
		if b.trailers == 0 {
			t.Error("no body came in chunks with a checksum behind: the test shows less than it should")
		}
		served := len(b.served)
		g.env = append(g.env, "AWS_ACCESS_KEY_ID=AKIAATTACKER00000000", "AWS_SECRET_ACCESS_KEY=attackers/secret/key/0000000000000000000")
		if out, err := g.inCell(before, "box", "x"); err == nil || !slices.Contains(g.reasons(), "foreign_credential") || len(b.served) != served {
			t.Errorf("SG-07 another's keys: %v, refusals %q, %s", err, g.reasons(), out)
		}
		g.holdsNone(awsSecret, awsToken)
	})
	t.Run("with a wrong key", func(t *testing.T) {
		g, b := newAWSWith(t, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYANOTHERKEY", awsToken)
		out, err := g.inCell(g.jsCell(), "box", "some text")
		if err == nil || !strings.Contains(out, "SignatureDoesNotMatch 403") || len(b.served) != 0 || !slices.Equal(g.reasons(), []string{"allowed"}) {
			t.Errorf("%v: %s, served %q, refusals %q", err, out, b.served, g.reasons())
		}
	})
	t.Run("elsewhere", func(t *testing.T) {
		g, b := newAWS(t, awsToken)
		out, err := g.inCell(g.jsCell(), "other", "some text")
		if err == nil || !slices.Contains(g.refusals("placeholder_leak"), otherHost) || len(b.served) != 0 {
			t.Errorf("%v: %s, served %q, refusals %q", err, out, b.served, g.reasons())
		}
	})
}

// jsCell opens the doors of a cell for programs in JavaScript.
func (g *gateway) jsCell() []string {
	g.t.Helper()
	before := g.openDoors()
	g.env = append(g.env, "NODE_EXTRA_CA_CERTS="+g.ca, "NODE_PATH="+jsLibraries)
	return before
}
