//! Which identity an address has: the table and its mirror in the kernel.
