//! The agent's REST server on a unix socket, to which cells add operations.
