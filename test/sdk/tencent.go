package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/tencentcloud/tencentcloud-sdk-go/tencentcloud/common"
	tchttp "github.com/tencentcloud/tencentcloud-sdk-go/tencentcloud/common/http"
	"github.com/tencentcloud/tencentcloud-sdk-go/tencentcloud/common/profile"
)

func tencentClient(k keys) *common.Client {
	p := profile.NewClientProfile()
	p.DisableRegionBreaker = true // it would try another host
	return common.NewCommonClient(common.NewTokenCredential(k.id, k.key, k.token), "ap-guangzhou", p)
}

func callTencent(_ context.Context, out io.Writer, args []string) error {
	c := tencentClient(keys{id: os.Getenv("TENCENTCLOUD_SECRET_ID"), key: os.Getenv("TENCENTCLOUD_SECRET_KEY")})
	r := tchttp.NewCommonRequest("cvm", "2017-03-12", "DescribeZones")
	r.SetDomain(args[0])
	if err := r.SetActionParameters(map[string]any{"Text": args[1]}); err != nil {
		return err
	}
	got := tchttp.NewCommonResponse()
	if err := c.Send(r, got); err != nil {
		return err
	}
	_, err := out.Write(got.GetBody())
	return err
}

// verifyTencent has the SDK sign what came once more.
func (k keys) verifyTencent(r *http.Request, body []byte) error {
	var c captured
	client := tencentClient(k).WithHttpTransport(&c)
	again := tchttp.NewCommonRequest("cvm", r.Header.Get("X-Tc-Version"), r.Header.Get("X-Tc-Action"))
	again.SetDomain(r.Host)
	again.SetHeader(map[string]string{"X-TC-Timestamp": r.Header.Get("X-Tc-Timestamp"), "Content-Type": r.Header.Get("Content-Type")})
	if err := again.SetActionParameters(body); err != nil {
		return err
	}
	at, err := strconv.ParseInt(r.Header.Get("X-Tc-Timestamp"), 10, 64)
	if err != nil {
		return err
	}
	_ = client.Send(again, tchttp.NewCommonResponse()) // it is answered that there is none
	return same(r.Header.Get("Authorization"), c.auth, time.Unix(at, 0), c.signs(body))
}
