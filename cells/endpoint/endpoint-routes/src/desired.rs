//! The routes of an endpoint, a function of its row.

use devices::SCOPE_LINK;
use endpoints::{Endpoint, State};
use ipnetwork::IpNetwork;
use routes::DesiredRoute;

/// Returns the owner of an endpoint's routes.
pub(crate) fn owner(endpoint: &Endpoint) -> String {
    format!("endpoint/{}", endpoint.record.id)
}

/// Returns the routes to an endpoint; none before its first regeneration in this run, which attaches the program that
/// enforces policy on packets by these routes.
pub(crate) fn routes(endpoint: &Endpoint) -> Vec<DesiredRoute> {
    let record = &endpoint.record;
    let is_leaving = matches!(endpoint.state, State::Disconnecting | State::Disconnected | State::Invalid);
    if is_leaving || endpoint.builds == 0 || !record.has_interface() || record.if_name.is_empty() {
        return Vec::new();
    }
    let to = |ip| DesiredRoute::new(IpNetwork::from(ip)).device(&record.if_name).scope(SCOPE_LINK);
    record.addresses().map(to).collect()
}

/// Whether the first regeneration of an endpoint may still come, so that it may have routes of the previous run.
pub(crate) fn is_restoring(endpoint: &Endpoint) -> bool {
    endpoint.builds == 0
        && endpoint.record.has_interface()
        && matches!(endpoint.state, State::Restoring | State::WaitingToRegenerate | State::Regenerating)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use endpoints::Record;
    use statedb::TableDisplay;

    use super::*;

    fn endpoint(builds: u64, state: State) -> Endpoint {
        let record = r#"{"ID":7,"IPv4":"10.0.0.7","IPv6":"fd00::7","IfName":"lxc7","OpLabels":null}"#;
        let record: Record = serde_json::from_str(record).unwrap();
        Endpoint { builds, state, ..Endpoint::restored(record, SystemTime::UNIX_EPOCH) }
    }

    #[test]
    fn an_endpoint_has_routes_from_its_first_regeneration_to_its_deletion() {
        let ready = endpoint(1, State::Ready);
        let rows: Vec<Vec<String>> = routes(&ready).iter().map(TableDisplay::row).collect();
        let text = |row: &Vec<String>| [2, 6, 8, 11].map(|column| row[column].clone()).join(" ");
        let texts: Vec<String> = rows.iter().map(text).collect();
        assert_eq!(texts, ["fd00::7/128 none lxc7 (0) link", "10.0.0.7/32 none lxc7 (0) link"]);
        assert_eq!(owner(&ready), "endpoint/7");

        for state in State::ALL {
            let is_there = !matches!(state, State::Disconnecting | State::Disconnected | State::Invalid);
            assert_eq!(routes(&endpoint(1, state)).len(), if is_there { 2 } else { 0 }, "{state:?}");
            assert!(routes(&endpoint(0, state)).is_empty(), "no program yet: {state:?}");
        }
    }

    #[test]
    fn a_failing_regeneration_does_not_keep_other_routes_of_the_previous_run() {
        assert!(is_restoring(&endpoint(0, State::Restoring)));
        assert!(is_restoring(&endpoint(0, State::Regenerating)));
        assert!(!is_restoring(&endpoint(1, State::Regenerating)));
        assert!(!is_restoring(&endpoint(0, State::Ready)), "it has failed");
        assert!(!is_restoring(&endpoint(0, State::Disconnecting)));
    }
}
