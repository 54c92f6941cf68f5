"""Publishing a stream to another broker: NATS JetStream, RabbitMQ, Redis Streams or Kafka."""

from sqlstreams.relay.publisher import Outcome, Outgoing, Publisher
from sqlstreams.relay.relay import Relay
from sqlstreams.relay.stats import RelayStats

__all__ = ["Outcome", "Outgoing", "Publisher", "Relay", "RelayStats"]
