"""The demo's neighbour: a sandbox that answers whoever reaches it. Nobody should."""
import socket
import threading

PORTS = [3129, 5353, 8080, 8443, 9000]


def tcp(port):
    with socket.create_server(("", port)) as s:
        while True:
            conn, _ = s.accept()
            conn.sendall(b"NEIGHBOUR\n")
            conn.close()


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("", 5353))
        while True:
            _, peer = s.recvfrom(2048)
            s.sendto(b"NEIGHBOUR", peer)


for p in PORTS:
    threading.Thread(target=tcp, args=(p,), daemon=True).start()
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.connect(("198.18.0.1", 9))
print("listening on", own.getsockname()[0], flush=True)
udp()
