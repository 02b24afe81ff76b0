"""One unary call with grpcio; prints the message and a trailer."""

import sys

import grpc

channel = grpc.secure_channel(sys.argv[1], grpc.ssl_channel_credentials())
call = channel.unary_unary(
    "/grpc.Echo/Say", request_serializer=bytes, response_deserializer=bytes
)
message, about = call.with_call(b"hello")
print(message.decode(), dict(about.trailing_metadata()).get("x-said"))
