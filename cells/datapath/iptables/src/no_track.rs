//! Traffic without connection tracking by netfilter: the rows that other cells write, and their rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use statedb::{Initializer, Query, RwTable, Table, TableDisplay, TableSpec};

use crate::rules::Family;
use crate::saved::Saved;

/// Ports in one rule at most, by the match `multiport`.
const MAX_PORTS: usize = 15;

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// Both protocols.
    pub const ALL: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

    fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The traffic of a pod that is not tracked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// From and to a port of the pod's own addresses, by TCP and UDP.
    Pod {
        /// The addresses.
        addresses: Vec<IpAddr>,
        /// The port.
        port: u16,
    },
    /// From and to ports of the node, which the pod shares.
    Host(BTreeSet<(Protocol, u16)>),
}

/// A row of table `no-track`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NoTrack {
    /// The endpoint or pod that the traffic is of.
    pub owner: Arc<str>,
    /// The traffic.
    pub traffic: Traffic,
}

impl NoTrack {
    /// Queries the row of an owner.
    #[must_use]
    pub fn by_owner(owner: &str) -> Query<NoTrack> {
        Query::primary(owner)
    }
}

impl TableSpec for NoTrack {
    const NAME: &'static str = "no-track";
    const PRIMARY: &'static str = "owner";
    type Key<'a> = &'a str;

    fn key(&self) -> &str {
        &self.owner
    }
}

impl TableDisplay for NoTrack {
    fn columns() -> &'static [&'static str] {
        &["Owner", "Addresses", "Ports"]
    }

    fn row(&self) -> Vec<String> {
        let (addresses, ports) = match &self.traffic {
            Traffic::Pod { addresses, port } => {
                let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
                (addresses.join(", "), port.to_string())
            }
            Traffic::Host(ports) => {
                let ports: Vec<String> =
                    ports.iter().map(|(protocol, port)| format!("{port}/{protocol}")).collect();
                ("host".to_owned(), ports.join(", "))
            }
        };
        vec![self.owner.to_string(), addresses, ports]
    }
}

/// The handle by which other cells exempt traffic from connection tracking.
#[derive(Clone, Debug)]
pub struct NoTrackRules {
    table: Arc<RwTable<NoTrack>>,
}

impl NoTrackRules {
    /// Returns the handle of a table.
    #[must_use]
    pub fn of(table: Arc<RwTable<NoTrack>>) -> Arc<NoTrackRules> {
        Arc::new(NoTrackRules { table })
    }

    /// Returns the table.
    #[must_use]
    pub fn table(&self) -> Table<NoTrack> {
        self.table.reader()
    }

    /// Registers a source of rows. Until it [has finished](Self::finish) rules of the previous run stay.
    pub fn register_initializer(&self, name: &str) -> Initializer<NoTrack> {
        let mut txn = self.table.write();
        let initializer = txn.register_initializer(name);
        txn.commit();
        initializer
    }

    /// Declares that a source has named all of its traffic.
    pub fn finish(&self, initializer: Initializer<NoTrack>) {
        let mut txn = self.table.write();
        initializer.done(&mut txn);
        txn.commit();
    }

    /// Sets or removes the traffic of owners, in one transaction. Equal rows are not touched.
    pub fn set(&self, rows: impl IntoIterator<Item = (Arc<str>, Option<Traffic>)>) {
        let mut txn = self.table.write();
        for (owner, traffic) in rows {
            let present = txn.get(NoTrack::by_owner(&owner)).map(|row| row.traffic.clone());
            match traffic {
                Some(traffic) if present.as_ref() != Some(&traffic) => {
                    txn.insert(NoTrack { owner, traffic });
                }
                None if present.is_some() => drop(txn.delete(NoTrack::by_owner(&owner))),
                _ => {}
            }
        }
        txn.commit();
    }
}

/// The traffic of one family that is not tracked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untracked {
    /// Addresses of pods with ports.
    pub pods: BTreeSet<(IpAddr, u16)>,
    /// Ports of the node.
    pub host: BTreeSet<(Protocol, u16)>,
    /// Whether all sources have named their traffic: rules of the previous run stay until then.
    pub is_complete: bool,
}

impl Untracked {
    /// Collects the traffic of a family.
    pub(crate) fn of<'r>(
        family: Family,
        rows: impl Iterator<Item = &'r NoTrack>,
        is_complete: bool,
    ) -> Untracked {
        let mut all = Untracked { is_complete, ..Untracked::default() };
        for row in rows {
            match &row.traffic {
                Traffic::Pod { addresses, port } => {
                    let of_family = addresses.iter().filter(|ip| ip.is_ipv4() == (family == Family::V4));
                    all.pods.extend(of_family.map(|ip| (*ip, *port)));
                }
                Traffic::Host(ports) => all.host.extend(ports),
            }
        }
        all
    }

    /// Adds the traffic of rules in the kernel, as long as a source is incomplete. Cilium's rules are read as well.
    pub(crate) fn restore(&mut self, saved: &Saved) {
        if self.is_complete {
            return;
        }
        for rule in saved.rules("raw", "CILIUM_PRE_raw").into_iter().flatten() {
            let words: Vec<&str> = rule.split(' ').collect();
            let value = |name: &str| {
                words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1)).copied()
            };
            if !rule.ends_with("-j CT --notrack") {
                continue;
            }
            let address = value("-d").and_then(|dst| dst.split('/').next()?.parse().ok());
            if let (Some(address), Some(port)) =
                (address, value("--dport").and_then(|port| port.parse().ok()))
            {
                self.pods.insert((address, port));
            }
            let protocol = Protocol::ALL.into_iter().find(|one| value("-p") == Some(one.as_str()));
            if let (Some(protocol), Some(ports)) = (protocol, value("--dports")) {
                let ports = ports.split(',').filter_map(|port| port.parse().ok());
                self.host.extend(ports.map(|port| (protocol, port)));
            }
        }
    }

    /// Returns the rules of a chain of table `raw`, or of `filter`, where untracked packets would match no rule that
    /// accepts established connections; those of single pods only with `of_pods`.
    pub(crate) fn rules(&self, chain: &str, of_pods: bool) -> Vec<String> {
        let is_raw = matches!(chain, "CILIUM_PRE_raw" | "CILIUM_OUTPUT_raw");
        let (verb, target) = if is_raw { ("NOTRACK", "CT --notrack") } else { ("ACCEPT", "ACCEPT") };
        let comment =
            format!("-m comment --comment \"cilium: {verb} for pods without tracking\" -j {target}");
        let mut rules = Vec::new();
        for (address, port) in self.pods.iter().filter(|_| of_pods) {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            for protocol in Protocol::ALL {
                for (end, side) in [("-d", "dport"), ("-s", "sport")] {
                    rules.push(format!(
                        "{end} {address}/{bits} -p {protocol} -m {protocol} --{side} {port} {comment}"
                    ));
                }
            }
        }
        let host = match chain {
            "CILIUM_PRE_raw" => Some(("dports", "cilium no-track-host-ports")),
            "CILIUM_OUTPUT_raw" => Some(("sports", "cilium no-track-host-ports return traffic")),
            _ => None,
        };
        if let Some((side, comment)) = host {
            rules.extend(self.host_rules(side, comment));
        }
        rules
    }

    fn host_rules(&self, side: &str, comment: &str) -> Vec<String> {
        let mut by_protocol: BTreeMap<Protocol, Vec<String>> = BTreeMap::new();
        for (protocol, port) in &self.host {
            by_protocol.entry(*protocol).or_default().push(port.to_string());
        }
        let rule = |protocol: Protocol, ports: &[String]| {
            let ports = ports.join(",");
            format!(
                "-p {protocol} -m multiport --{side} {ports} -m comment --comment \"{comment}\" -j CT --notrack"
            )
        };
        let rules = by_protocol
            .iter()
            .flat_map(|(protocol, ports)| ports.chunks(MAX_PORTS).map(move |ports| rule(*protocol, ports)));
        rules.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(owner: &str, addresses: &[&str], port: u16) -> NoTrack {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        NoTrack { owner: owner.into(), traffic: Traffic::Pod { addresses, port } }
    }

    fn host(owner: &str, ports: impl IntoIterator<Item = (Protocol, u16)>) -> NoTrack {
        NoTrack { owner: owner.into(), traffic: Traffic::Host(ports.into_iter().collect()) }
    }

    #[test]
    fn a_pod_has_four_rules_in_each_of_five_chains() {
        let rows = [pod("endpoint/7", &["10.244.0.9", "fd00::9"], 53)];
        let untracked = Untracked::of(Family::V4, rows.iter(), true);
        let comment = "-m comment --comment \"cilium: NOTRACK for pods without tracking\" -j CT --notrack";
        assert_eq!(
            untracked.rules("CILIUM_PRE_raw", true),
            [
                format!("-d 10.244.0.9/32 -p tcp -m tcp --dport 53 {comment}"),
                format!("-s 10.244.0.9/32 -p tcp -m tcp --sport 53 {comment}"),
                format!("-d 10.244.0.9/32 -p udp -m udp --dport 53 {comment}"),
                format!("-s 10.244.0.9/32 -p udp -m udp --sport 53 {comment}"),
            ]
        );
        assert_eq!(untracked.rules("CILIUM_OUTPUT_raw", true), untracked.rules("CILIUM_PRE_raw", true));
        for chain in ["CILIUM_INPUT", "CILIUM_OUTPUT", "CILIUM_FORWARD"] {
            let rules = untracked.rules(chain, true);
            assert!(rules.len() == 4 && rules.iter().all(|rule| rule.ends_with("-j ACCEPT")), "{rules:#?}");
        }
        let v6 = Untracked::of(Family::V6, rows.iter(), true).rules("CILIUM_FORWARD", true);
        assert!(v6.len() == 4 && v6[0].starts_with("-d fd00::9/128 -p tcp "), "{v6:#?}");
        assert!(Untracked::default().rules("CILIUM_PRE_raw", true).is_empty());
    }

    #[test]
    fn ports_of_the_host_are_the_union_of_pods_in_groups_of_fifteen() {
        let many = (1..=16).map(|port| (Protocol::Tcp, port));
        let rows = [host("pod/a", many), host("pod/b", [(Protocol::Tcp, 16), (Protocol::Udp, 53)])];
        let untracked = Untracked::of(Family::V6, rows.iter(), true);
        let rules = untracked.rules("CILIUM_PRE_raw", true);
        let starts = [
            "-p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 -m comment ",
            "-p tcp -m multiport --dports 16 -m comment ",
            "-p udp -m multiport --dports 53 -m comment ",
        ];
        assert!(rules.len() == 3 && rules.iter().zip(starts).all(|(rule, start)| rule.starts_with(start)));
        let replies = untracked.rules("CILIUM_OUTPUT_raw", true);
        assert!(replies.len() == 3 && replies.iter().all(|rule| rule.contains(" --sports ")));
        assert!(untracked.rules("CILIUM_FORWARD", true).is_empty(), "only raw chains");
    }

    #[test]
    fn rules_of_the_previous_run_stay_until_all_sources_are_complete() {
        let rows = [pod("endpoint/7", &["10.244.0.9"], 53), host("pod/a", [(Protocol::Udp, 53)])];
        let before = Untracked::of(Family::V4, rows.iter(), true);
        let lines: String = before
            .rules("CILIUM_PRE_raw", true)
            .iter()
            .map(|rule| format!("-A CILIUM_PRE_raw {rule}\n"))
            .collect();
        // Rules for other reasons are none of a pod.
        let tunnel = "-A CILIUM_PRE_raw -p udp -m udp --dport 8472 -m comment --comment \"x\" -j CT --notrack\n\
                      -A CILIUM_PRE_raw -d 10.244.0.8/32 -p tcp -m tcp --dport 80 -j ACCEPT\n";
        let saved = Saved::parse(&format!("*raw\n:CILIUM_PRE_raw - [0:0]\n{tunnel}{lines}COMMIT\n"));
        let mut now = Untracked::default();
        now.restore(&saved);
        assert_eq!((&now.pods, &now.host), (&before.pods, &before.host));
        let mut complete = Untracked { is_complete: true, ..Untracked::default() };
        complete.restore(&saved);
        assert_eq!(complete, Untracked { is_complete: true, ..Untracked::default() });
    }

    #[test]
    fn equal_rows_are_not_touched() {
        let table = Arc::new(statedb::Db::new().table_with_display::<NoTrack>().unwrap());
        let rules = NoTrackRules::of(table.clone());
        let port = |port| Some(Traffic::Host([(Protocol::Tcp, port)].into()));
        rules.set([("a".into(), port(1)), ("b".into(), port(2))]);
        let before = table.revision(&table.snapshot());
        rules.set([("a".into(), port(1)), ("c".into(), None)]);
        assert_eq!(table.revision(&table.snapshot()), before);
        rules.set([("a".into(), None), ("b".into(), port(3))]);
        let snapshot = table.snapshot();
        let rows: Vec<Vec<String>> = table.all(&snapshot).map(|row| row.row()).collect();
        assert_eq!(rows, [["b", "host", "3/tcp"]]);
    }
}
