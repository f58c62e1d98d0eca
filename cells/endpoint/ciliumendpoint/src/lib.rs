//! CiliumEndpoints: those of own pods are written, those of other nodes are in the ipcache.
//!
//! **Owns** the CiliumEndpoints of this node's pods, and the claims of the source `custom-resource` whose resource is
//! `cep/NAMESPACE/NAME`.
//! **Needs** the tables of CiliumEndpoints, pods and endpoints, the ipcache, the node's row, the writer. **Provides** nothing.
//!
//! **Own pods.** An endpoint with an identity and a pod gets an object: one request when it is created, one when it is
//! deleted. Its status changes with identity, addresses and ports at once, with the state after 10 s, with regenerations not
//! at all. An object that another client deletes or changes is written again, at most every 15 s, and reported in the row
//! `other-writer` of health. An object of the same name that exists already is adopted if the endpoint's record has its uid
//! or the pod's `status.hostIP` is this node; if not, it is reported in the row `foreign-objects` and stays. Endpoints of the
//! previous run adopt theirs without a request if nothing has changed.
//!
//! Once endpoints are restored and objects are listed, objects of this node without an endpoint are deleted: a kill of the
//! previous run between the two requests has left them.
//!
//! **Pods of other nodes.** Once all objects are listed, a job claims their addresses in one transaction; the ipcache deletes
//! no entry of the previous run before. Changes follow. A claim belongs to its object, so that the late deletion of an
//! address's former owner does not affect the current one. Objects of this node are left out: its own endpoints claim their
//! addresses themselves.
//!
//! With `enable-cilium-endpoint-slice` they come from the slices that an operator makes of the objects of all nodes; the
//! objects themselves are not watched then. An endpoint that the operator moves is in two slices for a while; the one that had
//! it last counts. Without any slice although there are own pods the row `endpoint-slices` of health reports it after 30 s.
//!
//! An object that claims an address of this node's own endpoints does not get it, as those have priority. It is reported in
//! the row `remote-endpoints` of health, as are objects that are invalid: an identity that no pod has, such as the host's,
//! an address that is none, no address of their node. These claim nothing.
//!
//! **Differences from Cilium.** Objects are created without reading them first, deviations are noticed by the watch instead
//! of every 10 s, changed labels are patched together with a changed status and under a test of the uid, the object of a
//! former pod of the name is replaced. Of an object of another node with invalid parts nothing is used.

#![forbid(unsafe_code)]

mod cell;
mod config;
mod desired;
mod ledger;
mod publish;
mod remote;
mod run;
mod slices;
mod stale;

pub use cell::cell;
pub use config::CiliumEndpointConfig;
