//! What tests share: sandboxes of namespaces, packets, counted skips.
