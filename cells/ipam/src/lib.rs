//! Addresses for endpoints from the node's pod ranges.
