//! Programs on the host side of pods' interfaces.
//!
//! Owns: packets out of a pod and into one ([`container`]), those that leave past the host's stack ([`bypass`]), and replies that programs send to pods on behalf of the
//! node itself: ARP ([`arp`]), neighbour solicitations and ICMPv6 errors ([`ndp`]), ICMP errors for services without
//! backends ([`no_service`]) and for packets that policy denies ([`denied`]). Uses `lb`, `policy`, `conntrack`, `endpoint`, `nodeport`, `packet`, `monitor`; of `host` only
//! the test for packets that the host generated.

pub(crate) mod arp;
pub(crate) mod bypass;
pub(crate) mod container;
pub(crate) mod denied;
pub(crate) mod ndp;
pub(crate) mod no_service;
