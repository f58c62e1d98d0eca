//! What others have removed from under us: compared with what should be there, and put back.
//!
//! Everything is looked at, whatever the occasion: a look costs a few system calls an endpoint and changes nothing when
//! all is well. [`Alarms`] says when to look before it is time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bpf::tc::Tc;
use devices::Netlink;
use hive::{Health, JobCx};
use maps::{DriftChecks, Maps, policy_name};
use tokio::time::Instant;

use crate::endpoints::kernel::KernelDatapath;
use crate::guard::nftables::Chain;
use crate::interfaces::controller::Controller;
use crate::interfaces::device_links;
use crate::interfaces::host::{self, HOST_DEVICE};
use crate::watchdog::alarms::Alarms;
use crate::watchdog::repairs::{Kind, Repair, Repairs, repair};
use datapath_api::{DatapathError, Step};

/// Looks are at least this far apart, whatever happens.
const PAUSE: Duration = Duration::from_secs(1);
/// Changes come together, and the kernel reports some before it makes them.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// When to look again after a look that failed, at most.
const RETRY: Duration = Duration::from_secs(5);
/// The same repairs are logged again after this.
const QUIET: Duration = Duration::from_secs(60);
/// Repairs named in one line of the log.
const SHOWN: usize = 8;
/// The consequence of a failed comparison.
const BROKEN: &str = "Parts of the datapath may have been removed and cannot be put back, trying again; pods go on as \
    long as the agent runs";

/// Mounts the bpf file system, and pins maps, policy maps and the array of programs again where a pin is missing or leads to
/// another map. Returns the repairs.
///
/// # Errors
/// If a map or pin cannot be read or written.
pub fn repair_pins(datapath: &KernelDatapath) -> Result<Vec<Repair>, DatapathError> {
    let (maps, table, policy_maps) = (datapath.maps(), datapath.table(), datapath.policy_maps());
    let done = maps.repin()?;
    let mut repairs = Vec::new();
    if done.mounted {
        let root = maps.fs().root().display();
        repairs.push(repair(Kind::FileSystem, format!("bpf file system on {root}")));
    }
    repairs.extend(done.pins.into_iter().map(|name| repair(Kind::Pin, name)));
    for config in table.all() {
        if policy_maps.is_pinned(&config)? {
            continue;
        }
        let id = config.id as u16;
        let endpoint = table.lock(id);
        // It may have been deleted, or be in the making.
        let config = endpoint.config();
        if config.id != u32::from(id) || policy_maps.is_pinned(&config)? {
            continue;
        }
        if let Some(map) = policy_maps.pool().map(config.policy_slot)? {
            policy_maps.pin(id, &map)?;
            repairs.push(repair(Kind::Pin, policy_name(id)));
        }
    }
    repairs.extend(policy_maps.pool().repin()?.into_iter().map(|pin| repair(Kind::Pin, pin)));
    if let Some(programs) = datapath.programs() {
        if programs.repin(maps.fs())? {
            let name = programs.calls_pin().file_name().unwrap_or_default();
            repairs.push(repair(Kind::Pin, name.to_string_lossy()));
        }
        let called = programs.repair_calls()?;
        repairs.extend(called.into_iter().map(|name| repair(Kind::Program, format!("tail call to {name}"))));
    }
    Ok(repairs)
}

impl Controller {
    /// Puts back pins and programs that others have removed, as far as it can; what [`Controller::apply`] has to make
    /// again is noted for it. Returns all of them. Without programs there is nothing to look after.
    pub(crate) fn recheck(&mut self) -> Result<Vec<Repair>, DatapathError> {
        let mut repairs = repair_pins(&self.datapath)?;
        let mut nl = Netlink::open()?;
        let mut rows = self.datapath.repair_rows(&nl.links()?)?;
        if let Some(written) = &self.written {
            rows.extend(self.write_rows(written)?);
        }
        repairs.extend(rows.into_iter().map(|what| repair(Kind::Row, what)));
        let attached = self.datapath.reattach(&mut nl)?;
        repairs.extend(attached.into_iter().map(|what| repair(Kind::Program, what)));
        let tc = Tc::new().step(|| "open a socket for tc filters".to_owned())?;
        let mut lost = BTreeSet::new();
        let fs = self.maps.fs();
        let programs = self.datapath.programs().ok_or(DatapathError::NotReady)?;
        for (place, link) in &self.attached {
            let program = programs.id(place.program)?;
            if !device_links::is_attached(place, program, link.as_ref(), &tc)? {
                lost.insert(place.clone());
                repairs.push(repair(Kind::Program, format!("program {}", place.filter())));
            } else if let Some(link) = link
                && device_links::pin_again(fs, place, link)?
            {
                repairs.push(repair(Kind::Pin, format!("link of {}", place.filter())));
            }
        }
        self.attached.retain(|place, _| !lost.contains(place));
        if let Some(settled) = &self.settled
            && let Some(host) = nl.find_link(HOST_DEVICE)?
        {
            let missing = host::missing(&mut nl, &host, settled)?;
            if !missing.is_empty() {
                self.settled = None;
            }
            repairs.extend(missing.into_iter().map(|what| repair(Kind::Network, what)));
        }
        Ok(repairs)
    }
}

/// One look at everything; `guarded` if the rule against unknown pods is wanted. Blocks.
pub(crate) fn look(controller: &mut Controller, guarded: bool) -> Result<Vec<Repair>, DatapathError> {
    let mut repairs = controller.recheck()?;
    for chain in [Chain::HostPackets, Chain::UnknownPods] {
        let wanted = guarded || chain == Chain::HostPackets;
        if wanted && !chain.is_installed().map_err(DatapathError::Rule)? {
            chain.install().map_err(DatapathError::Rule)?;
            repairs.push(repair(Kind::Rule, chain.description()));
        }
    }
    Ok(repairs)
}

/// When to look, and what came of it.
pub(crate) struct Watchdog {
    interval: Duration,
    alarms: Alarms,
    next: Instant,
    last: Instant,
    /// An alarm has asked for this look: it may have come before what it tells of, so another follows.
    alarmed: bool,
    comparisons: Arc<DriftChecks>,
    /// When other keepers of rows are to compare theirs.
    compare_at: Instant,
    /// A look is under way to others' repairs.
    awaited: bool,
    health: Health,
    told: Option<(Instant, String)>,
}

impl Watchdog {
    /// One that looks after each `interval`, zero for never.
    pub(crate) fn new(interval: Duration, maps: &Maps, cx: &JobCx) -> Watchdog {
        let now = Instant::now();
        let alarms = Alarms::new(maps.path("ep_config"));
        let health = cx.health.scope("watchdog");
        Watchdog {
            interval,
            alarms,
            next: now + interval,
            last: now,
            alarmed: false,
            comparisons: maps.comparisons().clone(),
            compare_at: now + interval,
            awaited: false,
            health,
            told: None,
        }
    }

    /// Looks after each `interval` from now on, zero for never.
    pub(crate) fn every(&mut self, interval: Duration) {
        if self.interval != interval {
            self.interval = interval;
            self.next = self.next.min(Instant::now() + interval);
            self.compare_at = Instant::now() + interval;
        }
    }

    /// Something of the host's side has changed: looks once that has settled.
    pub(crate) fn soon(&mut self) {
        self.next = self.next.min(Instant::now().max(self.last + PAUSE) + SETTLE);
    }

    /// The host's side has been made: what was removed while that went on shows at another look.
    pub(crate) fn confirm(&mut self) {
        self.next = self.next.min(Instant::now() + PAUSE);
    }

    /// Waits for the next look.
    pub(crate) async fn due(&mut self) {
        if self.interval.is_zero() {
            return std::future::pending().await;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.next) => {
                    if self.compare_at <= Instant::now() {
                        self.compare_at = Instant::now() + self.interval;
                        self.comparisons.begin();
                    }
                    return;
                }
                () = self.alarms.next() => {
                    self.soon();
                    self.alarmed = true;
                }
                // Other keepers of rows have put some back: told with the next look.
                () = self.comparisons.any(), if !self.awaited => {
                    self.soon();
                    self.awaited = true;
                }
            }
        }
    }

    /// Takes the outcome of a look, or says why there is none; whether the host's side has to be made again.
    pub(crate) fn report(&mut self, found: Result<Vec<Repair>, DatapathError>, repairs: &Repairs) -> bool {
        self.last = Instant::now();
        self.next = self.last + if std::mem::take(&mut self.alarmed) { PAUSE } else { self.interval };
        self.awaited = false;
        let found = match found {
            Ok(mut found) => {
                found.extend(self.comparisons.take().into_iter().map(|what| repair(Kind::Row, what)));
                found
            }
            Err(error) => {
                if self.health.degraded_anew(BROKEN, &error) {
                    tracing::warn!(%error, "{BROKEN}");
                }
                self.next = self.last + self.interval.min(RETRY);
                return false;
            }
        };
        found.iter().for_each(|repair| repairs.count(repair.kind));
        if !found.is_empty() {
            let count = found.len();
            let shown: Vec<String> = found.iter().take(SHOWN).map(|repair| repair.what.clone()).collect();
            let shown = shown.join(", ");
            // Who fights with somebody about a filter says so once a minute.
            let again = |(at, before): &(Instant, String)| *before == shown && at.elapsed() < QUIET;
            if !self.told.as_ref().is_some_and(again) {
                tracing::warn!(
                    count,
                    what = shown,
                    "Somebody removed or changed parts of the datapath, they are put back"
                );
                self.told = Some((self.last, shown));
            }
        }
        match &self.told {
            Some((_, last)) => self.health.ok(format!("{} repairs, last of: {last}", repairs.total())),
            None => self.health.ok("nothing was missing"),
        }
        found.iter().any(|repair| matches!(repair.kind, Kind::Program | Kind::Network))
    }
}
