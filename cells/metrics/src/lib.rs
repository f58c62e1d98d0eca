//! The agent's metrics registry and its Prometheus endpoint.
