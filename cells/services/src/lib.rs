//! Services, frontends and backends as tables, load balancer maps as their mirror.
