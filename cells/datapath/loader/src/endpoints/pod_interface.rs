//! The names that identify pods' interfaces before they are announced.

/// The prefix of names of pods' host-side interfaces.
pub const POD_INTERFACE_PREFIX: &str = "lxc";
/// The number of hexadecimal digits that follow: the first of a digest of container and interface.
pub(crate) const POD_INTERFACE_DIGITS: usize = 12;

/// Whether a link is named as CNI plugins (Cilium's and ours) name the host side of a pod: `lxc` and 12 hexadecimal
/// digits. Cilium's plugin sets no other mark before it announces the endpoint, so any veth with such a name counts as
/// a pod's.
pub fn is_pod_interface(link: &devices::Link) -> bool {
    let digits = link.name.strip_prefix(POD_INTERFACE_PREFIX).unwrap_or_default();
    link.kind == "veth"
        && digits.len() == POD_INTERFACE_DIGITS
        && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}
