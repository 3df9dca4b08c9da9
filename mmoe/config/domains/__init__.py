"""Domains: rows of several scenes, each with gates of its own, and what a config says of them."""

from mmoe.config.domains.check import check_domains
from mmoe.config.domains.settings import MOST_DOMAINS, DomainsConfig

__all__ = ["MOST_DOMAINS", "DomainsConfig", "check_domains"]
