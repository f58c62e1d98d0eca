//! Tests that need two cells, root, namespaces or real clients.
