// Stands in for Google Pub/Sub in tests: the fake that comes with Google's client for Go, with the limits of the
// service that the fake lets pass. It keeps everything in memory.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// The limits of https://cloud.google.com/pubsub/quotas#resource_limits
const (
	largestRequest    = 10_000_000
	mostMessages      = 1000
	mostAttributes    = 100
	longestName       = 256
	longestValue      = 1024
	longestKey        = 1024
	mostBytesReceived = 4 * largestRequest
)

// How often a pull looks for messages, and how long before the end of the caller's patience it says there are none.
const (
	look  = 5 * time.Millisecond
	early = 20 * time.Millisecond
)

type service struct{ *pstest.GServer }

// Publish refuses what the service refuses.
func (s service) Publish(ctx context.Context, request *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
	if wrong := complaint(request); wrong != "" {
		return nil, status.Error(codes.InvalidArgument, wrong)
	}
	return s.GServer.Publish(ctx, request)
}

func complaint(request *pubsubpb.PublishRequest) string {
	if proto.Size(request) > largestRequest {
		return "the request is too large"
	}
	if len(request.Messages) == 0 || len(request.Messages) > mostMessages {
		return "a request has 1 to 1000 messages"
	}
	for _, message := range request.Messages {
		if message.OrderingKey != request.Messages[0].OrderingKey {
			return "all messages of a request have the same ordering key"
		}
		if len(message.OrderingKey) > longestKey {
			return "the ordering key is too long"
		}
		if len(message.Data) == 0 && len(message.Attributes) == 0 {
			return "the message has neither data nor attributes"
		}
		if len(message.Attributes) > mostAttributes {
			return "the message has too many attributes"
		}
		for name, value := range message.Attributes {
			if name == "" || len(name) > longestName || len(value) > longestValue || strings.HasPrefix(name, "goog") {
				return "the message has an attribute whose name or value is refused"
			}
		}
	}
	return ""
}

// Pull waits for messages as long as the caller does, as the service may; the fake answers after half a second.
func (s service) Pull(ctx context.Context, request *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	immediate := proto.Clone(request).(*pubsubpb.PullRequest)
	immediate.ReturnImmediately = true
	for {
		answer, err := s.GServer.Pull(ctx, immediate)
		if err != nil || len(answer.ReceivedMessages) > 0 || request.ReturnImmediately {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(look):
		}
		if until, ok := ctx.Deadline(); ok && time.Until(until) < early {
			return answer, nil
		}
	}
}

// The fake panics when it is told of a message that it does not know, as after it was restarted.
func surviving(
	ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (answer any, err error) {
	defer func() {
		if recover() != nil {
			err = status.Error(codes.InvalidArgument, "there is no such message")
		}
	}()
	return handle(ctx, request)
}

func main() {
	host := flag.String("host", "127.0.0.1", "the address to listen on")
	port := flag.Int("port", 8085, "its port")
	flag.Parse()
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, strconv.Itoa(*port)))
	if err != nil {
		log.Fatal(err)
	}
	fake := pstest.NewServer()
	defer fake.Close()
	server := grpc.NewServer(grpc.MaxRecvMsgSize(mostBytesReceived), grpc.UnaryInterceptor(surviving))
	pubsubpb.RegisterPublisherServer(server, service{&fake.GServer})
	pubsubpb.RegisterSubscriberServer(server, service{&fake.GServer})
	log.Fatal(server.Serve(listener))
}
