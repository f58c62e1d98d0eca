//! Writes rows into policy maps: each plan between two sets of rows is computed once, and several threads write maps.

use std::collections::HashMap;
use std::sync::Arc;

use datapath_abi::{PolicyEntry, PolicyKey};
use datapath_api::{Datapath, DatapathError};

use crate::model::rows::Rows;
use crate::policymap::plan::{Plan, plan};

/// The number of maps per thread: writing this many takes about as long as starting another thread.
const MAPS_PER_THREAD: usize = 8;
/// The maximum number of threads, so that writing maps leaves CPU time to the rest of the node.
const MAX_THREADS: usize = 4;

/// A change of a map's rows.
#[derive(Debug)]
pub(crate) struct MapChange {
    pub(crate) endpoint: u16,
    /// The rows of the map; `None` if they have to be read.
    pub(crate) current: Option<Arc<Rows>>,
    pub(crate) desired: Arc<Rows>,
    /// Whether to swap the map regardless of its rows, so that all traffic is denied by one atomic write.
    pub(crate) swap: bool,
}

/// The method by which a map was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapWrite {
    /// Not changed: the map had the desired rows.
    Unchanged,
    /// By single writes.
    InPlace,
    /// The map was replaced by another one.
    Swapped,
}

/// The plan for a map, shared by all maps with the same change.
#[derive(Debug)]
enum MapPlan {
    Known(Plan),
    /// The rows of the map have to be read first.
    Read,
}

/// Applies all changes. Returns the results in the same order.
pub(crate) fn install(
    datapath: &dyn Datapath,
    changes: &[MapChange],
) -> Vec<Result<MapWrite, DatapathError>> {
    let capacity = datapath.policy_capacity();
    let mut plans: HashMap<(*const Rows, *const Rows), Arc<MapPlan>> = HashMap::new();
    let mut images: HashMap<*const Rows, Arc<Vec<(PolicyKey, PolicyEntry)>>> = HashMap::new();
    let mut planned = Vec::with_capacity(changes.len());
    for change in changes {
        let desired = Arc::as_ptr(&change.desired);
        let map_plan = match &change.current {
            None => Arc::new(MapPlan::Read),
            Some(current) => {
                let make = || Arc::new(MapPlan::Known(plan(current, &change.desired, capacity)));
                plans.entry((Arc::as_ptr(current), desired)).or_insert_with(make).clone()
            }
        };
        let image = images.entry(desired).or_insert_with(|| Arc::new(change.desired.to_kernel())).clone();
        planned.push((change, map_plan, image));
    }
    let write = |(change, map_plan, image): &(&MapChange, Arc<MapPlan>, Arc<Vec<_>>)| {
        write_map(datapath, change, map_plan, image)
    };
    let threads = changes.len().div_ceil(MAPS_PER_THREAD).min(MAX_THREADS);
    if threads < 2 {
        return planned.iter().map(write).collect();
    }
    std::thread::scope(|scope| {
        let share = planned.len().div_ceil(threads);
        let write = &write;
        let running: Vec<_> = planned
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().map(write).collect::<Vec<_>>()))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().flat_map(join).collect()
    })
}

fn write_map(
    datapath: &dyn Datapath,
    change: &MapChange,
    map_plan: &MapPlan,
    image: &[(PolicyKey, PolicyEntry)],
) -> Result<MapWrite, DatapathError> {
    let read;
    let found = match map_plan {
        MapPlan::Known(plan) => plan,
        MapPlan::Read => {
            let rows: Rows = datapath.policy_rows(change.endpoint)?.into_iter().collect();
            read = plan(&rows, &change.desired, datapath.policy_capacity());
            &read
        }
    };
    match found {
        Plan::InPlace(writes) if writes.is_empty() => Ok(MapWrite::Unchanged),
        Plan::InPlace(writes) if !change.swap => match datapath.write_policy(change.endpoint, writes) {
            // The map has rows that the plan does not know. Every prefix of the plan's writes is a valid state, so a
            // swap may complete the change.
            Err(DatapathError::PolicyFull { .. }) => {
                datapath.swap_policy(change.endpoint, image).map(|()| MapWrite::Swapped)
            }
            written => written.map(|()| MapWrite::InPlace),
        },
        _ => datapath.swap_policy(change.endpoint, image).map(|()| MapWrite::Swapped),
    }
}
