package sign

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"time"

	"sallyport/broker/secret"
)

// awsKeys is a pair of keys, and the token of temporary ones.
type awsKeys struct {
	id, secret, token string
	expires           *time.Time
}

func (k awsKeys) exposed() []string {
	if k.token != "" {
		return []string{k.id, k.token}
	}
	return []string{k.id}
}

var awsID = regexp.MustCompile(`^[A-Za-z0-9_]{16,128}$`)

// readAWSKeys reads what AWS's own tools keep keys in: the JSON that a
// credential process prints, or the lines of a credentials file.
func readAWSKeys(v secret.Value) (k awsKeys, err error) {
	text := bytes.TrimSpace(v.Reveal())
	if bytes.HasPrefix(text, []byte("{")) {
		var in struct {
			AccessKeyID     string `json:"AccessKeyId"`
			SecretAccessKey string
			SessionToken    string
			Expiration      *time.Time
		}
		if json.Unmarshal(text, &in) != nil {
			return awsKeys{}, errors.New("the secret is not the JSON of a credential process")
		}
		k = awsKeys{in.AccessKeyID, in.SecretAccessKey, in.SessionToken, in.Expiration}
	} else if k, err = readAWSLines(string(text)); err != nil {
		return awsKeys{}, err
	}
	switch {
	case !awsID.MatchString(k.id):
		return awsKeys{}, errors.New("the secret holds no access key id")
	case len(k.secret) < 16 || checkHeaderSafe(secret.New([]byte(k.secret))) != nil || strings.ContainsAny(k.secret, " \t"):
		return awsKeys{}, errors.New("the secret holds no secret access key")
	case k.token != "" && checkHeaderSafe(secret.New([]byte(k.token))) != nil:
		return awsKeys{}, errors.New("the session token cannot stand in a header")
	}
	return k, nil
}

func readAWSLines(text string) (k awsKeys, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '[' {
			continue
		}
		name, value, _ := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		var at *string
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			at = &k.id
		case "aws_secret_access_key":
			at = &k.secret
		case "aws_session_token":
			at = &k.token
		default:
			return awsKeys{}, errors.New("the secret has a line that is none of aws_access_key_id, aws_secret_access_key, aws_session_token")
		}
		if *at != "" {
			return awsKeys{}, errors.New("the secret holds more than one pair of keys")
		}
		*at = value
	}
	return k, nil
}
