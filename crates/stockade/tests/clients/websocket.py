"""A WebSocket client (RFC 6455) by hand: sends two messages and prints what
comes back. With a proxy as second argument it asks that for a tunnel."""

import base64
import hashlib
import os
import socket
import ssl
import struct
import sys
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
secure = url.scheme == "wss"
port = url.port or (443 if secure else 80)


def head(stream):
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        if not byte:
            sys.exit(f"closed after {data!r}")
        data += byte
    return data.decode()


def exactly(stream, count):
    data = b""
    while len(data) < count:
        piece = stream.recv(count - len(data))
        if not piece:
            sys.exit("closed within a frame")
        data += piece
    return data


def send(stream, text):
    body, mask = text.encode(), os.urandom(4)
    frame = bytes([0x81])
    frame += bytes([0x80 | len(body)]) if len(body) < 126 else struct.pack("!BH", 0xFE, len(body))
    stream.sendall(frame + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(body)))


def receive(stream):
    first, length = exactly(stream, 2)
    if length == 126:
        (length,) = struct.unpack("!H", exactly(stream, 2))
    assert first == 0x81, first
    return exactly(stream, length).decode()


if len(sys.argv) > 2:
    proxy = urlsplit(sys.argv[2])
    stream = socket.create_connection((proxy.hostname, proxy.port))
    target = f"{url.hostname}:{port}"
    stream.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    answer = head(stream)
    if " 200 " not in answer:
        sys.exit(answer)
else:
    stream = socket.create_connection((url.hostname, port))
if secure:
    stream = ssl.create_default_context().wrap_socket(stream, server_hostname=url.hostname)
key = base64.b64encode(os.urandom(16)).decode()
stream.sendall(
    f"GET {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nUpgrade: websocket\r\n"
    f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
    "Sec-WebSocket-Version: 13\r\n\r\n".encode()
)
answer = head(stream)
magic = key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
accept = base64.b64encode(hashlib.sha1(magic.encode()).digest()).decode()
if " 101 " not in answer or accept not in answer:
    sys.exit(answer)
for text in ("hello", "x" * 1000):
    send(stream, text)
    echo = receive(stream)
    assert echo == text, echo
    print(len(echo), echo[:5])
