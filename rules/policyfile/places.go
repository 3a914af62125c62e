package policyfile

import (
	"slices"

	"sallyport/rules"
	"sallyport/rules/target"
)

// resolvers are hosts of well-known public services of DNS over HTTPS.
var resolvers = []string{
	"dns.google", "dns.google.com", "dns64.dns.google", "cloudflare-dns.com", "mozilla.cloudflare-dns.com", "chrome.cloudflare-dns.com",
	"security.cloudflare-dns.com", "family.cloudflare-dns.com", "one.one.one.one", "dns.quad9.net", "dns9.quad9.net", "dns10.quad9.net",
	"dns11.quad9.net", "doh.opendns.com", "doh.familyshield.opendns.com", "doh.umbrella.com", "dns.umbrella.com", "dns.nextdns.io",
	"dns.adguard-dns.com", "dns.adguard.com", "unfiltered.adguard-dns.com", "family.adguard-dns.com", "doh.cleanbrowsing.org",
	"freedns.controld.com", "dns.controld.com", "dns.mullvad.net", "base.dns.mullvad.net", "doh.dns.sb", "dns.sb", "dns0.eu",
	"dns.switch.ch", "doh.libredns.gr", "wikimedia-dns.org", "dnsforge.de", "dns.twnic.tw", "doh.xfinity.com",
	"dns.alidns.com", "doh.pub", "dns.pub", "doh.360.cn",
	"1.1.1.1", "1.0.0.1", "1.1.1.2", "1.0.0.2", "1.1.1.3", "1.0.0.3", "8.8.8.8", "8.8.4.4", "9.9.9.9", "9.9.9.10", "149.112.112.112",
	"208.67.222.222", "208.67.220.220", "94.140.14.14", "94.140.15.15", "223.5.5.5", "223.6.6.6", "119.29.29.29", "1.12.12.12", "120.53.53.53",
	"2606:4700:4700::1111", "2606:4700:4700::1001", "2001:4860:4860::8888", "2001:4860:4860::8844", "2620:fe::fe", "2620:fe::9",
}

// resolverIn returns a public resolver that a pattern is about, "" for none.
func resolverIn(h rules.HostPattern) string {
	for _, s := range resolvers {
		if s == h.Host.String() {
			return h.String()
		}
		if host, err := target.ParseHost(s); err == nil && h.Match(host) {
			return s
		}
	}
	return ""
}

// drops are domains where anybody has data received for him, without an account
// or with one of a minute: pastes, files, requests that are kept, messages to robots
// of anybody's, tunnels, and names that resolve to any address that they hold.
var drops = []string{
	// pastes
	"bpa.st", "clbin.com", "controlc.com", "dpaste.com", "dpaste.org", "ghostbin.com", "hastebin.com", "ix.io", "justpaste.it",
	"paste.ee", "paste.gg", "paste.mozilla.org", "paste.rs", "pastebin.com", "pastie.org", "privatebin.net", "rentry.co", "rentry.org",
	"sprunge.us", "termbin.com",
	// files
	"0x0.st", "anonfiles.com", "bashupload.com", "bayfiles.com", "catbox.moe", "envs.sh", "file.io", "filebin.net", "filetransfer.io",
	"gofile.io", "keep.sh", "krakenfiles.com", "mediafire.com", "mega.io", "mega.nz", "oshi.at", "pixeldrain.com", "sendspace.com", "temp.sh",
	"tmpfiles.org", "transfer.sh", "ttm.sh", "ufile.io", "uguu.se", "uploadfiles.io", "we.tl", "wetransfer.com", "workupload.com",
	"wormhole.app", "x0.at",
	// requests that are kept
	"beeceptor.com", "burpcollaborator.net", "bxss.me", "canarytokens.com", "canarytokens.org", "ceye.io", "dnslog.cn", "eyes.sh",
	"hookbin.com", "hookdeck.com", "interact.sh", "interactsh.com", "mockbin.io", "mockbin.org", "mocky.io", "oast.fun", "oast.live", "oast.me",
	"oast.online", "oast.pro", "oast.site", "oastify.com", "pipedream.net", "play.svix.com", "postb.in", "ptsv2.com", "ptsv3.com",
	"requestbin.com", "requestbin.net", "requestcatcher.com", "requestinspector.com", "requestrepo.com", "smee.io", "typedwebhook.tools",
	"webhook.cool", "webhook.site", "webhook-test.com", "xss.ht", "xsshunter.com",
	// messages to whatever robot, hook or form the sender names
	"api.telegram.org", "discord.com", "discordapp.com", "forms.gle", "hook.eu1.make.com", "hook.us1.make.com", "hooks.slack.com",
	"hooks.zapier.com", "maker.ifttt.com", "ntfy.sh", "script.google.com", "formspree.io",
	// tunnels
	"bore.pub", "devtunnels.ms", "lhr.life", "loca.lt", "localhost.run", "localto.net", "localtunnel.me", "loophole.site",
	"ngrok-free.app", "ngrok-free.dev", "ngrok.app", "ngrok.dev", "ngrok.io", "ngrok.pizza", "ngrok.pro", "pagekite.me", "pinggy.io", "pinggy.link",
	"playit.gg", "ply.gg", "portmap.io", "serveo.net", "serveousercontent.com", "sharedwithexpose.com", "srv.us", "telebit.io",
	"trycloudflare.com", "tunnelmole.net", "tunnelto.dev", "zrok.io",
	// names that lead anywhere
	"1u.ms", "lvh.me", "localtest.me", "nip.io", "rbndr.us", "sslip.io", "traefik.me", "vcap.me", "xip.io",
}

// dropOf returns the domain of drops that a host is or lies below, "" for none.
func dropOf(n target.Name) string {
	for up, ok := n, true; ok; up, ok = up.Parent() {
		if slices.Contains(drops, up.String()) {
			return up.String()
		}
	}
	return ""
}
