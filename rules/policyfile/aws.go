package policyfile

import (
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// AWS lists what may be signed for: a scope outside is refused.
type AWS struct {
	Regions, Services []string
	Role              AWSRole // with its keys, if it is not empty
}

// AWSRole is a role that the secret's keys assume; its temporary keys sign.
type AWSRole struct {
	Role       string // ARN
	Session    string // its name, which stands in AWS's own log
	ExternalID string
	Duration   int    // seconds, 0 for the service's own
	Region     string // of the token service
	URL        string // https
}

func awsKeys(f *file, s *Scheme) []key {
	return []key{
		{name: "regions", required: true, read: f.codes(&s.AWS.Regions), form: listOf(codeForm)},
		{name: "services", required: true, read: f.codes(&s.AWS.Services), form: listOf(codeForm)},
		{name: "assume_role", read: f.awsRole(&s.AWS.Role), form: keysForm("assume_role", "of the role", awsRoleKeys(f, &AWSRole{}))},
	}
}

var (
	awsRoleARN = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$`)
	awsSession = regexp.MustCompile(`^[A-Za-z0-9+=,.@_-]{2,64}$`)
	awsExtern  = regexp.MustCompile(`^[A-Za-z0-9+=,.@:/_-]{2,1000}$`)
)

// awsRole reads what AssumeRole is asked with (AWS STS API reference).
func (f *file) awsRole(r *AWSRole) func(ast.Node) {
	return func(n ast.Node) {
		r.Session = "sallyport"
		f.mapping(n, "assume_role", awsRoleKeys(f, r))
		if r.URL == "" && r.Region != "" {
			r.URL = "https://sts." + r.Region + ".amazonaws.com/"
		}
	}
}

func awsRoleKeys(f *file, r *AWSRole) []key {
	return []key{
		{name: "role", required: true, read: f.matching(&r.Role, awsRoleARN, "the ARN of a role, for example arn:aws:iam::123456789012:role/agent"), form: pattern("ARN of a role", awsRoleARN.String())},
		{name: "region", required: true, form: codeForm, read: func(n ast.Node) {
			var list []string
			f.code(&list, n)
			r.Region = strings.Join(list, "")
		}},
		{name: "session", read: f.matching(&r.Session, awsSession, "the name of a session: letters, digits and +=,.@_-"), form: pattern("name of a session", awsSession.String())},
		{name: "external_id", read: f.matching(&r.ExternalID, awsExtern, "an external id"), form: pattern("external id", awsExtern.String())},
		{name: "duration", read: f.seconds(&r.Duration, 900, 43200), form: numberForm(900, 43200)},
		{name: "url", read: f.httpsURL(&r.URL), form: urlForm},
	}
}
