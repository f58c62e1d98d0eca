//! Pods of other nodes: CiliumEndpoints in the ipcache.
//!
//! **Owns** the claims of the source `custom-resource` whose resource is `cep/NAMESPACE/NAME`.
//! **Needs** the table of CiliumEndpoints, the ipcache, the node's row, the table of endpoints. **Provides** nothing.
//!
//! **Life.** Once all objects are listed, a job claims their addresses in one transaction; the ipcache deletes no entry of the
//! previous run before. Changes follow. A claim belongs to its object, so that the late deletion of an address's former owner
//! does not affect the current one. Objects of this node are left out: its own endpoints claim their addresses themselves.
//!
//! An object that claims an address of this node's own endpoints does not get it, as those have priority. It is reported in
//! the row `remote-endpoints` of health, as are objects that are invalid: an identity that no pod has, such as the host's,
//! an address that is none, no address of their node. These claim nothing.
//!
//! **Differences from Cilium.** Objects of this node are ignored; of an object with invalid parts nothing is used.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod remote;
mod run;

pub use cell::cell;
pub use config::CiliumEndpointConfig;
