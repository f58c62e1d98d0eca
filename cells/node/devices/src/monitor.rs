//! The kernel's notifications, kept in the tables: the async shell.
//!
//! One socket carries all notifications, so that they come in the kernel's
//! order. A listing fills the tables at the start, again when the socket has
//! overflowed, and from time to time in case a message was missed.

use std::io;
use std::time::{Duration, Instant};

use futures::FutureExt;
use hive::JobCx;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use statedb::{Initializer, RwTable};

use crate::apply::{self, Tables};
use crate::event::{self, Event};
use crate::rtnetlink::{self, notifications};
use crate::select::Selection;
use crate::{Device, Neighbor, Netlink, NetlinkError, Route};

/// Multicast groups of rtnetlink: links, neighbours, addresses and routes of
/// both families (`RTNLGRP_*`).
const GROUPS: [u32; 6] = [1, 3, 5, 7, 9, 11];
const ENOBUFS: i32 = 105;
const PACKET: usize = 64 << 10;
/// Messages that come shortly after each other are one transaction.
const GATHER: Duration = Duration::from_millis(2);
/// At most so many messages in one transaction.
const BATCH: usize = 8192;
/// Listings that a change asks for are at least this far apart.
const ROUTE_PAUSE: Duration = Duration::from_millis(200);

/// The writer halves of the tables.
#[derive(Clone, Debug)]
pub(crate) struct RwTables {
    pub(crate) devices: RwTable<Device>,
    pub(crate) routes: RwTable<Route>,
    pub(crate) neighbors: RwTable<Neighbor>,
}

/// Promises to fill the three tables.
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

/// How the monitor listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MonitorOptions {
    /// How often everything is listed in case a message was missed.
    pub(crate) resync_interval: Duration,
    /// Receive buffer of the socket in bytes; the kernel allows as much as it
    /// allows, overflows are handled.
    pub(crate) receive_buffer: u32,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        Self { resync_interval: Duration::from_secs(300), receive_buffer: 4 << 20 }
    }
}

/// The monitor's counts, for health and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Notifications applied.
    pub(crate) messages: u64,
    /// Times the kernel dropped notifications because the socket was full.
    pub(crate) overflows: u64,
    /// Full listings.
    pub(crate) listings: u64,
    /// Listings of the routes alone.
    pub(crate) route_listings: u64,
    /// Notifications that could not be parsed.
    pub(crate) unknown: u64,
}

/// A subscription to the network namespace it was made in.
pub(crate) struct Monitor {
    socket: TokioSocket,
    buffer: Vec<u8>,
    tables: RwTables,
    selection: Selection,
    resync_interval: Duration,
    /// Whose work the listings are.
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
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        let raw = socket.socket_mut();
        raw.bind(&SocketAddr::new(0, 0))?;
        raw.set_rx_buf_sz(options.receive_buffer)?;
        for group in GROUPS {
            raw.add_membership(group)?;
        }
        let mut monitor = Self {
            socket,
            buffer: Vec::with_capacity(PACKET),
            tables,
            selection,
            resync_interval: options.resync_interval,
            job: None,
            counters: Counters::default(),
        };
        monitor.list_all().await?;
        Ok(monitor)
    }

    /// Applies notifications until an error; a new monitor can then take over.
    /// `progress` hears the counters after each round.
    pub(crate) async fn run(&mut self, mut progress: impl FnMut(&Counters)) -> Result<(), NetlinkError> {
        let mut next_full = Instant::now() + self.resync_interval;
        let mut routes_due: Option<Instant> = None;
        let mut routes_listed = Instant::now();
        loop {
            let wake = routes_due.unwrap_or(next_full).min(next_full);
            let pause = wake.saturating_duration_since(Instant::now());
            let mut round = Round::default();
            let first = tokio::time::timeout(pause, self.receive()).await;
            if let Ok(packet) = first {
                self.take(packet, &mut round)?;
                tokio::time::sleep(GATHER).await;
                self.drain(&mut round)?;
                let (selection, events) = (&self.selection, round.events);
                let applied = self.tables.write(|t| apply::apply(t, selection, events));
                if round.routes_stale || applied.routes_stale {
                    routes_due.get_or_insert(Instant::now().max(routes_listed + ROUTE_PAUSE));
                }
            }
            let now = Instant::now();
            if round.overflow || now >= next_full {
                let _working = self.job.as_ref().map(JobCx::working);
                self.list_all().await?;
                // Large tables take a while: stay below a thousandth of the time.
                let pause = self.resync_interval.max(now.elapsed() * 1000);
                (next_full, routes_due) = (Instant::now() + pause, None);
            } else if routes_due.is_some_and(|due| now >= due) {
                let _working = self.job.as_ref().map(JobCx::working);
                self.list_routes().await?;
                // A million routes take a while: stay below a tenth of the time.
                routes_listed = Instant::now() + now.elapsed() * 10;
                routes_due = None;
            }
            progress(&self.counters);
        }
    }

    /// The next packet, into the buffer.
    async fn receive(&mut self) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.reserve(PACKET);
        self.socket.recv(&mut self.buffer).await
    }

    /// Reads what is there without waiting. After an overflow everything is
    /// read, so that the listing that follows is newer than every message.
    fn drain(&mut self, round: &mut Round) -> Result<(), NetlinkError> {
        while round.overflow || round.events.len() < BATCH {
            let packet = tokio::task::unconstrained(self.receive()).now_or_never();
            match packet {
                Some(packet) => self.take(packet, round)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Takes the result of a read into the round.
    fn take(&mut self, packet: io::Result<()>, round: &mut Round) -> Result<(), NetlinkError> {
        match packet {
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => {
                self.counters.overflows += 1;
                round.overflow = true;
                round.events.clear();
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(()) if round.overflow => return Ok(()),
            Ok(()) => {}
        }
        let (messages, unknown) = notifications(&self.buffer);
        self.counters.unknown += unknown as u64;
        for (message, flags) in messages {
            self.counters.messages += 1;
            // No message tells of the route that a replacement removed.
            round.routes_stale |= matches!(message, Message::NewRoute(_)) && flags & NLM_F_REPLACE != 0;
            round.events.extend(event::events(&message));
        }
        Ok(())
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

/// Everything there is, links first.
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
