//! The node the agent runs on: names, addresses, pod ranges.
