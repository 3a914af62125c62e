package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	webTimeout = 10 * time.Second
	// maxWebAnswer bounds an answer of a store. A Kubernetes secret is at most
	// 1 MiB, of which base64 makes a third more.
	maxWebAnswer = 2 << 20
)

// statusError is an answer other than 200. Nothing of its text is told: stores
// repeat what they were sent.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("it answered %d", int(e)) }

// web asks a store over HTTPS, by the broker's own way out.
type web struct{ transport http.RoundTripper }

// call sends one request; in is sent as JSON unless nil. The answer is left in
// raw for the caller to wipe, and decoded into out.
func (w web) call(ctx context.Context, method, url string, header map[string]string, in, out any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, webTimeout, fmt.Errorf("it took longer than %v", webTimeout))
	defer cancel()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return errors.New("the question cannot be written as JSON")
		}
		defer clear(b)
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return errors.New("its address is not a URL")
	}
	for name, v := range header {
		if v != "" {
			req.Header.Set(name, v)
		}
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "sallyport")
	resp, err := w.transport.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK { // a redirect too: the token goes nowhere else
		return statusError(resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxWebAnswer))
	defer func() { clear(b) }()
	if err != nil {
		return errors.New("its answer broke off")
	}
	if json.Unmarshal(b, out) != nil {
		return errors.New("its answer is not the JSON that was expected")
	}
	return nil
}

// readMounted reads a file that a kubelet projects: it is reached by links that
// are exchanged when the content changes, all inside one directory, and is
// root's. Links out of the directory are not followed. A strict file may be read
// by its owner and group alone.
func readMounted(dir, name string, cfg Config, strict bool) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, explainOpen(err, dir, cfg)
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return nil, explainOpen(err, filepath.Join(dir, name), cfg)
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, errors.New("its mode cannot be told")
	case !fi.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case fi.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("its mode is %04o, so that others could change it", fi.Mode().Perm())
	case strict && fi.Mode().Perm()&0o007 != 0:
		return nil, fmt.Errorf("its mode is %04o, so that everybody can read it; put defaultMode: 0440 into the volume, and fsGroup into the pod", fi.Mode().Perm())
	}
	if err := ownedWell(fi, cfg); err != nil {
		return nil, err
	}
	return readAll(f)
}

// ownedWell refuses a file of anybody but root and the broker.
func ownedWell(fi fs.FileInfo, cfg Config) error {
	uid, ok := ownerOf(fi)
	if !ok || uid != 0 && uid != cfg.UID {
		return errors.New("it belongs to another user, who could change it")
	}
	return nil
}
