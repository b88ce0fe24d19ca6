"""Queues on a Redis server: a stream each, with leases, delays and dead letters beside it."""

from tupletree.queues.redis.broker import CAPABILITIES, RedisBroker, open_redis

__all__ = ["CAPABILITIES", "RedisBroker", "open_redis"]
