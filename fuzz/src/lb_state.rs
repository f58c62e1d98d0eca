//! The file of services: a valid one is applied as a whole, an invalid one changes nothing.

use std::collections::BTreeSet;

use loadbalancer::Families;
use loadbalancer::parse_state_file;

/// The file.
pub(crate) fn run(data: &[u8]) {
    let both = Families { v4: true, v6: true };
    match parse_state_file(data, both) {
        Err(faults) => {
            assert!(!faults.is_empty());
            assert!(faults.iter().all(|fault| !fault.is_empty()));
        }
        Ok(state) => {
            let names: BTreeSet<_> = state.services.iter().map(|(service, _)| &service.name).collect();
            assert_eq!(names.len(), state.services.len(), "a service is given once");
            for (_, frontends) in &state.services {
                let addresses: BTreeSet<_> = frontends.iter().map(|frontend| frontend.address).collect();
                assert_eq!(addresses.len(), frontends.len(), "an address is one frontend");
                assert!(frontends.iter().all(|frontend| frontend.address.port != 0));
            }
            // With a family disabled the rest is the same.
            let less = parse_state_file(data, Families { v4: false, v6: true }).unwrap();
            assert_eq!(less.services.len(), state.services.len());
            assert!(less.backends.iter().all(|backend| backend.address.ip.is_ipv6()));
        }
    }
}
