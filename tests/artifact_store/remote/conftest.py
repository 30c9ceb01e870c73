"""The servers that remote tiers are tested with, one of each for a session."""

from tests.support.servers import nginx, nginx_listing, redis, registry, s3

__all__ = ["nginx", "nginx_listing", "redis", "registry", "s3"]
