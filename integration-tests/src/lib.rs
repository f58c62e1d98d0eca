//! Shared parts of the integration tests: a running agent and its clients.
