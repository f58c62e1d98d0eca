//! Addresses: allocation and the ipcache.

use crate::{List, NodeAddressing, Required};

crate::models! {
    /// An allocation for a new endpoint.
    IpamResponse {
        "address" address: AddressPair,
        "host-addressing" host_addressing: NodeAddressing,
        "ipv4" ipv4: Option<IpamAddressResponse>,
        "ipv6" ipv6: Option<IpamAddressResponse>,
    }

    /// One allocated address.
    IpamAddressResponse {
        "cidrs" cidrs: List<String>,
        "expiration-uuid" expiration_uuid: String,
        "gateway" gateway: String,
        "interface-number" interface_number: String,
        "ip" ip: String,
        "master-mac" master_mac: String,
        "skip-masquerade" skip_masquerade: bool,
    }

    /// The addresses of an endpoint, one a family.
    AddressPair {
        "ipv4" ipv4: String,
        "ipv4-expiration-uuid" ipv4_expiration_uuid: String,
        "ipv4-pool-name" ipv4_pool_name: String,
        "ipv6" ipv6: String,
        "ipv6-expiration-uuid" ipv6_expiration_uuid: String,
        "ipv6-pool-name" ipv6_pool_name: String,
    }

    /// A prefix of the ipcache and its identity.
    IpListEntry {
        "cidr" cidr: Required<String>,
        "encryptKey" encrypt_key: i64,
        "hostIP" host_ip: String,
        "identity" identity: Required<i64>,
        "metadata" metadata: Option<IpListEntryMetadata>,
    }

    /// The source of an ipcache entry.
    IpListEntryMetadata {
        "name" name: String,
        "namespace" namespace: String,
        "source" source: String,
    }
}
