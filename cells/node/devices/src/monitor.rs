//! Keeps the tables equal to the kernel by its notifications: the async half of the monitor.
//!
//! One socket carries all notifications, so that they arrive in the kernel's order. A listing fills the tables at the
//! start, again when the socket has overflowed, and from time to time in case a notification was missed.

use std::time::{Duration, Instant};

use hive::JobCx;
use netlink::{Protocol, Received, Subscription};
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use statedb::{Initializer, RwTable};

use crate::apply::{self, Tables};
use crate::event::{self, Event};
use crate::rtnetlink;
use crate::select::Selection;
use crate::{Device, Neighbor, Netlink, NetlinkError, Route};

/// Multicast groups of the objects in the tables.
const GROUPS: [u32; 6] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_NEIGH,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV6_ROUTE,
];
/// Notifications within this time are coalesced into one transaction.
const COALESCE_TIME: Duration = Duration::from_millis(2);
/// Events of one transaction at most.
const MAX_BATCH: usize = 8192;
/// Minimum interval of route listings that changes trigger.
const ROUTE_LISTING_INTERVAL: Duration = Duration::from_millis(200);

/// The writer halves of the tables.
#[derive(Clone, Debug)]
pub(crate) struct RwTables {
    pub(crate) devices: RwTable<Device>,
    pub(crate) routes: RwTable<Route>,
    pub(crate) neighbors: RwTable<Neighbor>,
}

/// Initializers of the three tables.
pub(crate) type Initializers = (Initializer<Device>, Initializer<Route>, Initializer<Neighbor>);

impl RwTables {
    pub(crate) fn register_initializers(&self, name: &str) -> Initializers {
        self.write(|t| {
            (
                t.devices.register_initializer(name),
                t.routes.register_initializer(name),
                t.neighbors.register_initializer(name),
            )
        })
    }

    pub(crate) fn initialized(&self, initializers: Initializers) {
        self.write(|t| {
            initializers.0.done(t.devices);
            initializers.1.done(t.routes);
            initializers.2.done(t.neighbors);
        });
    }

    fn write<R>(&self, work: impl FnOnce(&mut Tables<'_, '_>) -> R) -> R {
        let db = self.devices.reader().db().clone();
        let mut txn = db.write((&self.devices, &self.routes, &self.neighbors));
        let (devices, routes, neighbors) = txn.split();
        let result = work(&mut Tables { devices, routes, neighbors });
        txn.commit();
        result
    }
}

/// Settings of the monitor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonitorOptions {
    /// Interval of full listings, in case a notification was missed.
    pub(crate) resync_interval: Duration,
    /// Receive buffer of the socket in bytes. The kernel caps it (`net.core.rmem_max`); overflows are handled.
    pub(crate) receive_buffer: u32,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        Self { resync_interval: Duration::from_secs(300), receive_buffer: 4 << 20 }
    }
}

/// Counters of the monitor, for logs and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Notifications applied.
    pub(crate) messages: u64,
    /// Overflows of the socket, which lose notifications.
    pub(crate) overflows: u64,
    /// Full listings.
    pub(crate) listings: u64,
    /// Listings of the routes alone.
    pub(crate) route_listings: u64,
    /// Notifications that could not be decoded.
    pub(crate) unknown: u64,
}

/// A subscription to the network namespace in which it was opened.
pub(crate) struct Monitor {
    subscription: Subscription,
    tables: RwTables,
    selection: Selection,
    resync_interval: Duration,
    /// The job to mark as working during listings.
    pub(crate) job: Option<JobCx>,
    pub(crate) counters: Counters,
}

/// The result of one round of reading.
#[derive(Debug, Default)]
struct Round {
    events: Vec<Event>,
    overflow: bool,
    routes_stale: bool,
}

impl Monitor {
    /// Subscribes, then fills the tables from a first listing.
    pub(crate) async fn start(
        tables: RwTables,
        selection: Selection,
        options: MonitorOptions,
    ) -> Result<Self, NetlinkError> {
        let subscription = Subscription::open(Protocol::Route, &GROUPS, Some(options.receive_buffer))?;
        let mut monitor = Self {
            subscription,
            tables,
            selection,
            resync_interval: options.resync_interval,
            job: None,
            counters: Counters::default(),
        };
        monitor.list_all().await?;
        Ok(monitor)
    }

    /// Applies notifications until an error, after which a new monitor is needed. Calls `progress` with the counters
    /// after each round.
    pub(crate) async fn run(&mut self, mut progress: impl FnMut(&Counters)) -> Result<(), NetlinkError> {
        let mut next_full = Instant::now() + self.resync_interval;
        let mut routes_due: Option<Instant> = None;
        let mut routes_listed = Instant::now();
        loop {
            let wake = routes_due.unwrap_or(next_full).min(next_full);
            let pause = wake.saturating_duration_since(Instant::now());
            let mut round = Round::default();
            let first = tokio::time::timeout(pause, self.subscription.receive()).await;
            if let Ok(received) = first {
                self.collect(received?, &mut round);
                tokio::time::sleep(COALESCE_TIME).await;
                self.drain(&mut round)?;
                let (selection, events) = (&self.selection, round.events);
                let applied = self.tables.write(|t| apply::apply(t, selection, events));
                if round.routes_stale || applied.routes_stale {
                    routes_due.get_or_insert(Instant::now().max(routes_listed + ROUTE_LISTING_INTERVAL));
                }
            }
            let now = Instant::now();
            if round.overflow || now >= next_full {
                let _working = self.job.as_ref().map(JobCx::working);
                self.list_all().await?;
                // Large tables take seconds: spend at most a thousandth of the time on full listings.
                let pause = self.resync_interval.max(now.elapsed() * 1000);
                (next_full, routes_due) = (Instant::now() + pause, None);
            } else if routes_due.is_some_and(|due| now >= due) {
                let _working = self.job.as_ref().map(JobCx::working);
                self.list_routes().await?;
                // A million routes take seconds: spend at most a tenth of the time on listings of routes.
                routes_listed = Instant::now() + now.elapsed() * 10;
                routes_due = None;
            }
            progress(&self.counters);
        }
    }

    /// Reads without waiting until there is no packet. After an overflow the whole queue is read, so that the following
    /// listing is newer than every message.
    fn drain(&mut self, round: &mut Round) -> Result<(), NetlinkError> {
        while round.overflow || round.events.len() < MAX_BATCH {
            match self.subscription.try_receive() {
                Some(received) => self.collect(received?, round),
                None => break,
            }
        }
        Ok(())
    }

    /// Adds the events of a packet to the round.
    fn collect(&mut self, received: Received, round: &mut Round) {
        match received {
            Received::Overflow => {
                self.counters.overflows += 1;
                round.overflow = true;
                round.events.clear();
                return;
            }
            Received::Packet if round.overflow => return,
            Received::Packet => {}
        }
        for notification in self.subscription.messages() {
            let decoded =
                notification.ok().map(|m| rtnetlink::decode(&m).map(|message| (message, m.header.flags)));
            let Some(Ok((message, flags))) = decoded else {
                self.counters.unknown += 1;
                continue;
            };
            self.counters.messages += 1;
            // The kernel sends no notification for a route that was replaced.
            round.routes_stale |= matches!(message, Message::NewRoute(_)) && flags & NLM_F_REPLACE != 0;
            round.events.extend(event::events(&message));
        }
    }

    async fn list_all(&mut self) -> Result<(), NetlinkError> {
        self.counters.listings += 1;
        let (tables, selection) = (self.tables.clone(), self.selection.clone());
        rtnetlink::call(move |nl| {
            let events = listing(nl)?;
            tables.write(|t| apply::resync(t, &selection, events));
            Ok(())
        })
        .await
    }

    async fn list_routes(&mut self) -> Result<(), NetlinkError> {
        self.counters.route_listings += 1;
        let (tables, selection) = (self.tables.clone(), self.selection.clone());
        rtnetlink::call(move |nl| {
            let routes = nl.routes()?;
            tables.write(|t| {
                apply::resync_routes(t, routes);
                apply::reselect(t, &selection);
            });
            Ok(())
        })
        .await
    }
}

/// Lists everything, links first: addresses, routes and neighbours refer to them.
fn listing(nl: &mut Netlink) -> Result<Vec<Event>, NetlinkError> {
    let mut events = Vec::new();
    for (what, request) in [
        ("list links", rtnetlink::all_links()),
        ("list addresses", Message::GetAddress(AddressMessage::default())),
        ("list routes", Message::GetRoute(RouteMessage::default())),
        ("list neighbours", Message::GetNeighbour(NeighbourMessage::default())),
    ] {
        events.extend(nl.dump(what, &request, |message| event::events(&message))?);
    }
    Ok(events)
}

#[cfg(test)]
#[path = "monitor/tests.rs"]
mod tests;
