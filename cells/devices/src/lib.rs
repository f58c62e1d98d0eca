//! Links, addresses, routes and neighbours of the node as live tables.
