//! Whether the agent works: GET /healthz on the socket and for the kubelet.
