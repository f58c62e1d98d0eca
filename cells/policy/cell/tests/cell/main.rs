//! The cell in a hive: with its dependencies in memory, and with policy maps in the kernel.

mod kernel;
mod kit;
mod life;
mod logs;
mod network_policies;
mod prefixes;
mod redirects;
mod services;
mod surfaces;
