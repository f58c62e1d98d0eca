//! The plan of a restore: the endpoints of the previous run to restore. A pure function of the existing records and
//! links.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::links::{Link, Links};
use crate::model::error::StateError;
use crate::model::id::EndpointId;
use crate::model::record::Record;
use crate::restore::files::{Found, StateFolder};

/// The decision on each directory.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Endpoints to restore, with the names of their directories, in the order of their ids.
    pub restore: Vec<Restored>,
    /// Directories to remove, each with the reason.
    pub discard: Vec<Discarded>,
    /// Directories that stay untouched and yield no endpoint.
    pub ignore: Vec<Ignored>,
    /// Directories with an unreadable record.
    pub damaged: Vec<Ignored>,
    /// The addresses of the health endpoint, which is created again with them.
    pub health: Vec<IpAddr>,
}

/// An endpoint to restore.
#[derive(Debug, PartialEq)]
pub struct Restored {
    /// The directory of its record.
    pub directory: String,
    /// The record with the current interface index.
    pub record: Record,
}

/// A directory to be removed.
#[derive(Debug, PartialEq)]
pub struct Discarded {
    /// Its name.
    pub directory: String,
    /// The endpoint to remove from the kernel as well; none if another directory has it.
    pub id: Option<EndpointId>,
    /// The cause.
    pub reason: Reason,
}

/// A directory that cannot be used.
#[derive(Debug, PartialEq)]
pub struct Ignored {
    /// Its name.
    pub directory: String,
    /// The error.
    pub problem: String,
}

/// The reason not to restore an endpoint of the previous run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Its interface is gone.
    InterfaceGone(String),
    /// A stage of a build beside the finished directory.
    Stage,
    /// The previous run was killed before the record was written, or after it was removed.
    Unfinished,
    /// Another directory has the endpoint's record as well.
    Duplicate(EndpointId),
    /// The health endpoint is created again by each start.
    Health,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::InterfaceGone(name) => write!(f, "interface {name} could not be found"),
            Reason::Stage => f.write_str("unfinished build beside a finished one"),
            Reason::Unfinished => f.write_str("a stop has left it without a record"),
            Reason::Duplicate(id) => write!(f, "endpoint {id} has another directory"),
            Reason::Health => f.write_str("health endpoints are created again"),
        }
    }
}

impl StateFolder {
    /// Returns what a start on a node with these links would do with each directory; changes nothing.
    pub fn preview(&self, links: &Links) -> Result<Plan, StateError> {
        let mut found = self.scan()?;
        for record in found.iter_mut().filter_map(|found| found.record.as_mut()?.as_mut().ok()) {
            follow_name(record, links);
        }
        Ok(plan(found, |name| links.get(name).map(|link| link.index)))
    }
}

/// Updates the name of an interface that was renamed: it is still the endpoint's.
fn follow_name(record: &mut Record, links: &Links) {
    let same =
        |link: &Link| link.index == record.if_index && link.mac.is_some() && link.mac == record.node_mac;
    if record.has_interface()
        && !links.contains_key(&record.if_name)
        && let Some((name, _)) = links.iter().find(|(_, link)| same(link))
    {
        let (id, before, now) = (record.id, &record.if_name, name);
        tracing::info!(endpointID = id, %before, %now, "The interface of an endpoint was renamed");
        record.if_name = name.clone();
    }
}

/// Decides on every directory. `link` returns the index of the interface with a name.
pub fn plan(found: Vec<Found>, link: impl Fn(&str) -> Option<u32>) -> Plan {
    let mut plan = Plan::default();
    let plain: Vec<u64> = found.iter().filter(|f| f.plain && !f.unfinished).map(|f| f.number).collect();
    let mut chosen: BTreeMap<u16, (bool, Restored)> = BTreeMap::new();
    for Found { directory, number, plain: is_plain, record, unfinished } in found {
        if unfinished {
            plan.discard.push(Discarded { directory, id: None, reason: Reason::Unfinished });
            continue;
        }
        if !is_plain && plain.contains(&number) {
            plan.discard.push(Discarded { directory, id: None, reason: Reason::Stage });
            continue;
        }
        let record = match record {
            None => {
                plan.ignore.push(Ignored { directory, problem: "no ep_config.json".to_owned() });
                continue;
            }
            Some(Err(error)) => {
                plan.damaged.push(Ignored { directory, problem: error.to_string() });
                continue;
            }
            Some(Ok(record)) if record.id == 0 => {
                plan.damaged
                    .push(Ignored { directory, problem: "record without an endpoint number".to_owned() });
                continue;
            }
            Some(Ok(record)) => record,
        };
        // The directory named like its endpoint wins over others with the same record.
        let own = is_plain && number == u64::from(record.id);
        let id = EndpointId(record.id);
        let candidate = Restored { directory, record };
        let loser = match chosen.remove(&id.0) {
            None => {
                chosen.insert(id.0, (own, candidate));
                continue;
            }
            Some((true, first)) => {
                chosen.insert(id.0, (true, first));
                candidate
            }
            Some((false, first)) => {
                chosen.insert(id.0, (own, candidate));
                first
            }
        };
        plan.discard.push(Discarded { directory: loser.directory, id: None, reason: Reason::Duplicate(id) });
    }
    for (_, candidate) in chosen.into_values() {
        judge(&mut plan, candidate, &link);
    }
    plan
}

/// Restores an endpoint if its interface exists, with the current index.
fn judge(plan: &mut Plan, candidate: Restored, link: &impl Fn(&str) -> Option<u32>) {
    let Restored { directory, mut record } = candidate;
    let id = EndpointId(record.id);
    if record.is_health() {
        plan.health.extend(record.addresses());
        plan.discard.push(Discarded { directory, id: Some(id), reason: Reason::Health });
        return;
    }
    if record.has_interface() {
        match link(&record.if_name) {
            Some(index) => record.if_index = index,
            None => {
                let reason = Reason::InterfaceGone(record.if_name);
                plan.discard.push(Discarded { directory, id: Some(id), reason });
                return;
            }
        }
    }
    plan.restore.push(Restored { directory, record });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::op_labels::OpLabels;
    use labels::Label;

    fn record(id: u16, if_name: &str) -> Record {
        Record { id, if_name: if_name.into(), if_index: 5, ..Record::default() }
    }

    fn found(directory: &str, number: u64, record: Record) -> Found {
        let plain = directory.bytes().all(|b| b.is_ascii_digit());
        Found { directory: directory.into(), number, plain, record: Some(Ok(record)), unfinished: false }
    }

    fn reserved(id: u16, key: &str) -> Record {
        let orchestration_identity = [Label::reserved(key)].into_iter().collect();
        let op_labels = OpLabels { orchestration_identity, ..OpLabels::default() };
        Record { op_labels, ..record(id, "gone") }
    }

    fn links(name: &str) -> Option<u32> {
        name.strip_prefix("lxc").and_then(|index| index.parse().ok())
    }

    #[test]
    fn endpoints_with_an_interface_go_on_unchanged() {
        let mut kept = record(12, "lxc5");
        kept.ipv4 = Some([10, 0, 0, 7].into());
        let plan = plan(vec![found("12", 12, kept.clone())], links);
        assert_eq!(plan.restore, [Restored { directory: "12".into(), record: kept }]);
        assert!(plan.discard.is_empty() && plan.ignore.is_empty());
    }

    #[test]
    fn a_renumbered_interface_is_found_by_its_name() {
        let plan = plan(vec![found("12", 12, record(12, "lxc77"))], links);
        assert_eq!(plan.restore[0].record.if_index, 77);
    }

    #[test]
    fn a_missing_interface_is_named() {
        let plan = plan(vec![found("12", 12, record(12, "eth9"))], links);
        let reason = Reason::InterfaceGone("eth9".into());
        assert_eq!(reason.to_string(), "interface eth9 could not be found");
        assert_eq!(plan.discard, [Discarded { directory: "12".into(), id: Some(EndpointId(12)), reason }]);
    }

    #[test]
    fn stages_yield_to_the_finished_directory_and_serve_without_it() {
        let list = vec![
            found("12", 12, record(12, "lxc5")),
            found("12_next", 12, record(12, "lxc6")),
            found("13_next", 13, record(13, "lxc7")),
        ];
        let plan = plan(list, links);
        let names: Vec<_> = plan.restore.iter().map(|r| r.directory.as_str()).collect();
        assert_eq!(names, ["12", "13_next"]);
        assert_eq!(plan.discard[0].reason, Reason::Stage);
        assert_eq!(plan.discard[0].id, None, "the kernel state belongs to the finished one");
    }

    #[test]
    fn of_duplicates_the_directory_with_the_right_number_wins() {
        for order in [["12", "14"], ["14", "12"]] {
            let list =
                order.iter().map(|name| found(name, name.parse().unwrap(), record(12, "lxc5"))).collect();
            let plan = plan(list, links);
            assert_eq!(plan.restore[0].directory, "12");
            assert_eq!(plan.discard[0].directory, "14");
            assert_eq!(plan.discard[0].reason, Reason::Duplicate(EndpointId(12)));
        }
    }

    #[test]
    fn broken_directories_yield_nothing() {
        let path = "state/12/ep_config.json".into();
        let list = vec![
            Found { directory: "11".into(), number: 11, plain: true, record: None, unfinished: false },
            Found {
                directory: "12".into(),
                number: 12,
                plain: true,
                unfinished: false,
                record: Some(Err(state_file::Error::Damaged { path, problem: "EOF".into() }.into())),
            },
            found("13", 13, record(0, "lxc1")),
        ];
        let plan = plan(list, links);
        assert!(plan.restore.is_empty() && plan.discard.is_empty());
        assert_eq!((plan.ignore.len(), plan.damaged.len()), (1, 2));
        assert_eq!(plan.ignore[0].problem, "no ep_config.json");
        assert!(plan.damaged[0].problem.starts_with("state/12/ep_config.json is damaged: EOF"));
    }

    #[test]
    fn what_a_kill_has_left_without_a_record_goes() {
        let found = Found { directory: "11".into(), number: 11, plain: true, record: None, unfinished: true };
        let plan = plan(vec![found], links);
        let reason = Reason::Unfinished;
        assert_eq!(plan.discard, [Discarded { directory: "11".into(), id: None, reason }]);
        assert!(plan.ignore.is_empty());
    }

    #[test]
    fn endpoints_without_an_interface_of_their_own_need_none() {
        let mut fake = record(12, "gone");
        fake.properties.insert("property-fake-endpoint".into(), true.into());
        let mut real = record(13, "gone");
        real.properties.insert("property-fake-endpoint".into(), false.into());
        let plan = plan(vec![found("12", 12, fake), found("13", 13, real)], links);
        assert_eq!((plan.restore.len(), plan.discard.len()), (1, 1));
        assert_eq!(plan.restore[0].directory, "12");
    }

    #[test]
    fn host_and_health() {
        let health = Record { ipv4: Some([10, 0, 0, 9].into()), ..reserved(2, "health") };
        let list = vec![found("1", 1, reserved(1, "host")), found("2", 2, health)];
        let plan = plan(list, links);
        assert_eq!(plan.restore.len(), 1, "the host endpoint needs no link of that name yet");
        assert!(plan.restore[0].record.is_host());
        assert_eq!(plan.discard[0].reason, Reason::Health);
        assert_eq!(plan.health, [IpAddr::from([10, 0, 0, 9])]);
    }
}
