//! Objects of a hive that outlive it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Site;
use crate::key::Key;
use crate::tally::{Given, Tally};

impl Tally {
    /// Returns the objects that are still referenced, except for permitted ones. Objects that no other constructor took
    /// come first: their owner is outside of the hive.
    pub(super) fn left(&self, may_be: &[Key]) -> Vec<LeftObject> {
        let given = self.given();
        let mut allowed: Vec<usize> = vec![];
        let is_there = |given: &&Given| given.object.holders() > 0;
        for given in given.iter().filter(is_there).filter(|given| may_be.contains(&given.key)) {
            allowed.push(given.object.address());
        }
        let there: Vec<&Given> = given
            .iter()
            .filter(is_there)
            .filter(|given| !allowed.contains(&given.object.address()))
            .collect();
        let mut left: Vec<LeftObject> = vec![];
        let mut seen: Vec<usize> = vec![];
        for given in &there {
            let address = given.object.address();
            if seen.contains(&address) {
                continue;
            }
            seen.push(address);
            let same = there.iter().filter(|other| other.object.address() == address);
            let takers =
                there.iter().filter(|other| other.node != given.node && other.takes.contains(&given.node));
            let mut taken_by: Vec<String> =
                takers.map(|taker| taker.site.place.function.to_owned()).collect();
            taken_by.dedup();
            left.push(LeftObject {
                types: same.map(|same| same.key.type_name()).collect(),
                given_by: given.site.clone(),
                holders: given.object.holders(),
                taken_by,
            });
        }
        left.sort_by_key(|object| !object.taken_by.is_empty());
        left
    }
}

/// An object that outlives its hive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeftObject {
    /// The types as which it was provided: `web::Store`, perhaps also `dyn web::Reader`.
    pub types: Vec<&'static str>,
    /// The constructor that returned it.
    pub given_by: Site,
    /// The number of references to it.
    pub holders: usize,
    /// Constructors that took it and whose own objects are leaked as well.
    pub taken_by: Vec<String>,
}

impl fmt::Display for LeftObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftObject { types, given_by, holders, taken_by } = self;
        let times = if *holders == 1 { "once".to_owned() } else { format!("{holders} times") };
        let name = |name: &&str| format!("Arc<{name}>");
        let names: Vec<String> = types.iter().map(name).collect();
        write!(f, "{}, held {times}, given by {given_by}", names.join(" and "))?;
        match taken_by.is_empty() {
            true => write!(f, "; drop it before, or say .holding::<{}>()", types[0]),
            false => write!(f, "; perhaps held by {}, whose objects are left as well", taken_by.join(", ")),
        }
    }
}

/// A job that did not end with its hive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftJob {
    /// Its name, such as `timer-job-gc`.
    pub job: Arc<str>,
    /// Its module.
    pub module: Arc<str>,
    /// The time after which it was dropped, because it did not end when cancelled; `None` if it still runs.
    pub dropped_after: Option<Duration>,
}

impl fmt::Display for LeftJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` of module `{}` ", self.job, self.module)?;
        match self.dropped_after {
            Some(grace) => write!(
                f,
                "did not end within {grace:?} of being cancelled: its code does not look at JobCx::cancelled()"
            ),
            None => f.write_str("still runs: it holds up its thread; use hive::blocking(..).await"),
        }
    }
}

/// Leaks of a hive: jobs that did not end, objects that are still referenced from outside.
///
/// A leaked object means a reference cycle, a task that escaped its job group, or a handle that is still held.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Leftovers {
    /// Jobs that did not end.
    pub jobs: Vec<LeftJob>,
    /// Leaked objects; first those that no other object of the hive holds.
    pub objects: Vec<LeftObject>,
}

impl Leftovers {
    /// Whether nothing is leaked.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.objects.is_empty()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("something is left of the hive")?;
        self.jobs.iter().try_for_each(|job| write!(f, "\n  job {job}"))?;
        self.objects.iter().try_for_each(|object| write!(f, "\n  object {object}"))
    }
}

impl std::error::Error for Leftovers {}
