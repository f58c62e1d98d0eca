//! What others have removed from under us: compared with what should be there, and put back.
//!
//! Everything is looked at, whatever the occasion: a look costs a few system calls an endpoint and changes nothing when
//! all is well. [`Alarms`] says when to look before it is time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bpf::tc::Tc;
use bpf::{Direction, Link, RawMap};
use datapath_abi::{EndpointConfig, ep_flag};
use devices::Netlink;
use hive::{Health, JobCx};
use maps::{DriftChecks, Maps, policy_name};
use tokio::time::Instant;

use crate::endpoints::kernel::KernelDatapath;
use crate::guard::nftables::Chain;
use crate::interfaces::controller::Controller;
use crate::interfaces::device_links;
use crate::interfaces::host::{self, HOST_DEVICE};
use crate::programs::set::ProgramSet;
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

impl KernelDatapath {
    /// Mounts the bpf file system, and pins maps, policy maps and the array of programs, where those pins are missing or
    /// lead to other maps.
    pub fn repair_pins(&self) -> Result<Vec<Repair>, DatapathError> {
        let done = self.maps().repin()?;
        let mut repairs = Vec::new();
        if done.mounted {
            let root = self.maps().fs().root().display();
            repairs.push(repair(Kind::FileSystem, format!("bpf file system on {root}")));
        }
        repairs.extend(done.pins.into_iter().map(|name| repair(Kind::Pin, name)));
        for id in self.rows().into_iter().map(|row| row.id as u16) {
            if self.policy_pin_is_right(id)? {
                continue;
            }
            let _changing = self.change(id);
            // It may have gone since, or be in the making.
            let row = self.row(id);
            if row.id != u32::from(id) || self.policy_pin_is_right(id)? {
                continue;
            }
            if let Some(map) = self.pool().map(row.policy_slot)? {
                self.pin_policy(id, &map)?;
                repairs.push(repair(Kind::Pin, policy_name(id)));
            }
        }
        repairs.extend(self.pool().repin()?.into_iter().map(|what| repair(Kind::Pin, what)));
        if let Some(programs) = self.programs()
            && programs.repin(self.maps().fs())?
        {
            let name = programs.calls_pin().file_name().unwrap_or_default();
            repairs.push(repair(Kind::Pin, name.to_string_lossy()));
        }
        if let Some(programs) = self.programs() {
            let called = programs.repair_calls()?;
            repairs
                .extend(called.into_iter().map(|name| repair(Kind::Program, format!("tail call to {name}"))));
        }
        Ok(repairs)
    }

    /// Whether the endpoint's pin leads to the map that its settings name.
    fn policy_pin_is_right(&self, id: u16) -> Result<bool, DatapathError> {
        let Ok(pinned) = RawMap::open(&self.maps().path(&policy_name(id))) else { return Ok(false) };
        Ok(self.pool().id(self.row(id).policy_slot)? == Some(pinned.id()))
    }

    /// Attaches the program again where it was removed from an endpoint's interface (`tc qdisc del`), or another program
    /// has its place. Goes on where one fails and returns the first error at the end.
    pub fn reattach(&self, nl: &mut Netlink) -> Result<Vec<Repair>, DatapathError> {
        let Some(programs) = self.programs() else { return Ok(Vec::new()) };
        let tc = Tc::new().step(|| "open a socket for tc filters".to_owned())?;
        let links: BTreeMap<u32, String> = nl.links()?.into_iter().map(|l| (l.index, l.name)).collect();
        let program = programs.id(datapath_object::FROM_CONTAINER)?;
        let (mut repairs, mut first_error) = (Vec::new(), None);
        for row in self.rows() {
            let (id, ifindex) = (row.id as u16, row.ifindex);
            let Some(name) = links.get(&ifindex).filter(|_| row.flags & ep_flag::LIVE != 0) else { continue };
            match self.reattach_one(&programs, program, &tc, &row, name) {
                Ok(true) => {
                    repairs.push(repair(Kind::Program, format!("program of endpoint {id} on {name}")));
                }
                Ok(false) => {}
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        first_error.map_or(Ok(repairs), Err)
    }

    /// Whether the program had to be attached to the interface of the endpoint with that row.
    fn reattach_one(
        &self,
        programs: &ProgramSet,
        program: u32,
        tc: &Tc,
        row: &EndpointConfig,
        ifname: &str,
    ) -> Result<bool, DatapathError> {
        let (id, ifindex) = (row.id as u16, row.ifindex);
        if self.is_attached(tc, ifindex, ifname, id, program)? {
            return Ok(false);
        }
        // Once more when nobody is at work on it: it may be in the making, or gone.
        let _changing = self.change(id);
        let _attaching = self.attaching.read().unwrap_or_else(PoisonError::into_inner);
        Ok(self.row(id) == *row
            && !self.is_attached(tc, ifindex, ifname, id, program)?
            && self.attach_program(programs, tc, ifindex, ifname, Some(id))?)
    }

    /// Whether the program with that id handles an endpoint's packets: by a link taken over, which runs before filters,
    /// else by a filter.
    fn is_attached(
        &self,
        tc: &Tc,
        ifindex: u32,
        ifname: &str,
        id: u16,
        program: u32,
    ) -> Result<bool, DatapathError> {
        let name = datapath_object::FROM_CONTAINER;
        let link = Link::open(&self.maps().fs().endpoint_links(id).join(name)).and_then(|link| link.info());
        if let Ok(info) = link
            && info.ifindex == Some(ifindex)
        {
            return Ok(info.program == program);
        }
        let filters = match tc.filters(ifindex, Direction::Ingress) {
            // The interface went a moment ago.
            Err(e) if e.is_not_found() => return Ok(true),
            found => found.step(|| format!("list filters of {ifname}"))?,
        };
        // An interface that was renamed keeps the filter's name.
        Ok(filters
            .iter()
            .any(|found| found.program == program && found.name.starts_with("cil_from_container-")))
    }
}

impl Controller {
    /// Puts back pins and programs that others have removed, as far as it can; what [`Controller::apply`] has to make
    /// again is noted for it. Returns all of them. Without programs there is nothing to look after.
    pub(crate) fn recheck(&mut self) -> Result<Vec<Repair>, DatapathError> {
        let mut repairs = self.datapath.repair_pins()?;
        let mut nl = Netlink::open()?;
        let mut rows = self.datapath.repair_rows(&nl.links()?)?;
        if let Some(written) = &self.written {
            rows.extend(self.write_rows(written)?);
        }
        repairs.extend(rows.into_iter().map(|what| repair(Kind::Row, what)));
        repairs.extend(self.datapath.reattach(&mut nl)?);
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
