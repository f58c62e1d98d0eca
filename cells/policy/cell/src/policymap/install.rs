//! Writes rows into policy maps: each way between two sets of rows is found once, maps are written by several threads.

use std::collections::HashMap;
use std::sync::Arc;

use datapath_abi::{PolicyEntry, PolicyKey};
use datapath_api::{Datapath, DatapathError};

use crate::model::rows::Rows;
use crate::policymap::plan::{Plan, plan};

/// Maps that a thread writes before another one is worth its start.
const MAPS_A_THREAD: usize = 8;
/// Threads at the most: the rest of the node has work, too.
const THREADS: usize = 4;

/// A map that is to be brought to other rows.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) endpoint: u16,
    /// The contents of the map; none if unknown.
    pub(crate) current: Option<Arc<Rows>>,
    pub(crate) wanted: Arc<Rows>,
    /// By another map whatever the rows are: what does not fit is denied at once.
    pub(crate) swap: bool,
}

/// How a map was brought to its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It had them.
    Nothing,
    /// By single writes.
    InPlace,
    /// By another map.
    Swap,
}

/// The work for one map, shared by all maps with the same rows.
#[derive(Debug)]
enum Step {
    Plan(Plan),
    /// Only the kernel knows what it holds.
    Read,
}

/// Does all the work; results in its order.
pub(crate) fn install(datapath: &dyn Datapath, works: &[Work]) -> Vec<Result<Way, DatapathError>> {
    let capacity = datapath.policy_capacity();
    let mut plans: HashMap<(*const Rows, *const Rows), Arc<Step>> = HashMap::new();
    let mut images: HashMap<*const Rows, Arc<Vec<(PolicyKey, PolicyEntry)>>> = HashMap::new();
    let mut steps = Vec::with_capacity(works.len());
    for work in works {
        let wanted = Arc::as_ptr(&work.wanted);
        let step = match &work.current {
            None => Arc::new(Step::Read),
            Some(current) => {
                let find = || Arc::new(Step::Plan(plan(current, &work.wanted, capacity)));
                plans.entry((Arc::as_ptr(current), wanted)).or_insert_with(find).clone()
            }
        };
        let image = images.entry(wanted).or_insert_with(|| Arc::new(work.wanted.to_kernel())).clone();
        steps.push((work, step, image));
    }
    let write = |(work, step, image): &(&Work, Arc<Step>, Arc<Vec<_>>)| one(datapath, work, step, image);
    let threads = works.len().div_ceil(MAPS_A_THREAD).min(THREADS);
    if threads < 2 {
        return steps.iter().map(write).collect();
    }
    std::thread::scope(|scope| {
        let share = steps.len().div_ceil(threads);
        let write = &write;
        let running: Vec<_> = steps
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().map(write).collect::<Vec<_>>()))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<_>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().flat_map(join).collect()
    })
}

fn one(
    datapath: &dyn Datapath,
    work: &Work,
    step: &Step,
    image: &[(PolicyKey, PolicyEntry)],
) -> Result<Way, DatapathError> {
    let read;
    let found = match step {
        Step::Plan(plan) => plan,
        Step::Read => {
            let rows: Rows = datapath.policy_rows(work.endpoint)?.into_iter().collect();
            read = plan(&rows, &work.wanted, datapath.policy_capacity());
            &read
        }
    };
    match found {
        Plan::InPlace(writes) if writes.is_empty() => Ok(Way::Nothing),
        Plan::InPlace(writes) if !work.swap => match datapath.write_policy(work.endpoint, writes) {
            // The map has rows that the plan does not know of: each prefix of the writes is right, the rest by another map.
            Err(DatapathError::PolicyFull { .. }) => {
                datapath.swap_policy(work.endpoint, image).map(|()| Way::Swap)
            }
            written => written.map(|()| Way::InPlace),
        },
        _ => datapath.swap_policy(work.endpoint, image).map(|()| Way::Swap),
    }
}
