//! Events of Kubernetes for packets of pods that are dropped, as `kubectl describe pod` shows them.
//!
//! **Owns** nothing but Events in the namespaces of pods.
//! **Needs** the flows of `hubble`, the table `endpoints` for the uids of pods, an `Arc<dyn Api>`, and with
//! `hubble-drop-events-extended` the policies of endpoints: messages name those that deny the packet, or select the pod.
//! **Provides** nothing.
//!
//! **Life.** Off by default (`hubble-drop-events`), and then without a job. On, each flow that was dropped for one of
//! `hubble-drop-events-reasons` and has a pod of this node on its side is an occurrence: equal ones (pod, message) are one
//! Event with a count. The first is written at once, further ones after `hubble-drop-events-interval`, at most
//! `hubble-drop-events-rate-limit` requests a second. Occurrences wait in memory: at most ten messages for a pod, then a
//! combined one, and at most 1,024 in all; what does not fit is counted in a line of the log.
//!
//! **Failures.** While the server refuses or is unreachable, nothing is lost but the order: counts grow and are written
//! later. A refusal is a row of health with the missing right.
//!
//! **Differences from Cilium.** The limit of the rate counts Events, not flows that are none. Events have the uid of the
//! pod in both directions, without which `kubectl describe` does not show them. Occurrences in between are counted.
//! A later fragment and an unknown protocol have an event, too.

#![forbid(unsafe_code)]

mod book;
mod cell;
mod config;
mod job;
mod occurrence;
mod policies;

pub use cell::cell;
pub use config::{DropEventsConfig, UnknownReason};
