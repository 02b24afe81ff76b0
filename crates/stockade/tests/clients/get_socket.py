"""Fetches a page over a socket of its own, which knows no proxy; also says
who signed the server's certificate when it is asked to."""

import socket
import ssl
import sys
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
stream = socket.create_connection((url.hostname, url.port or 443))
stream = ssl.create_default_context().wrap_socket(stream, server_hostname=url.hostname)
stream.sendall(
    f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode()
)
answer = b""
while piece := stream.recv(65536):
    answer += piece
head, _, body = answer.partition(b"\r\n\r\n")
if b" 200 " not in head.split(b"\r\n")[0] + b" ":
    sys.exit(head.decode())
print(body.decode().strip())
if "--issuer" in sys.argv:
    issuer = dict(pair[0] for pair in stream.getpeercert()["issuer"])
    print("issuer", issuer["commonName"])
