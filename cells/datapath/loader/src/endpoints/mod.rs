//! Endpoints in the kernel: their map entries, pins, filters and policy maps; the implementation of `Datapath`.
//!
//! `kernel` composes the parts, each of which owns its state and the lock of it: `table` (settings), `policy_maps` with
//! `pool` and `slots`, `pod_programs`, `conntrack_purge`. `lock_order` has the order of the locks, `idle_socket` keeps netlink
//! sockets open.
//!
//! Sibling folders that it uses: `programs`.

pub(crate) mod conntrack_purge;
pub(crate) mod detached_interfaces;
pub(crate) mod drift;
pub(crate) mod idle_socket;
pub(crate) mod jobs;
pub(crate) mod kernel;
pub(crate) mod leftovers;
pub(crate) mod lock_order;
pub(crate) mod pod_interface;
pub(crate) mod pod_programs;
pub(crate) mod policy_maps;
pub(crate) mod pool;
pub(crate) mod slots;
pub(crate) mod table;
